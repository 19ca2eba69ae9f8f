"""Embeddings of an eager PyTorch network: the input of its last linear layer, or the output of a named layer.

The network runs unchanged and returns the embedding beside its scores. TorchScript and torch.export programs have no
layers to hook: they become ONNX, and `onnx_features` finds the embedding.
"""

import difflib
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

from gateway_models.networks.adapted import Adapted, Form, chosen, flat
from gateway_models.networks.file_kinds import ModelFileError
from gateway_models.networks.probe import ALONE_TOLERANCE, probe_batches
from gateway_models.repository.spec import AUTO

NAME_IT = "use --embeddings LAYER, a layer whose output is [N, size], or [N, channels, height, width] to be averaged"
NO_LENGTH = 1e-5
"""An embedding shorter than this part of the longest one is rounding noise, such as the embedding of an even image."""


class Featured(Adapted):
    """Wraps a network as images fp32 [N, 3, H, W] → scores [N, classes] and embeddings [N, size]."""

    def __init__(self, network: nn.Module, form: Form, output: str, layer: str, classes: int) -> None:
        super().__init__(_Cut(network, layer, classes), form, output)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]  # one tensor more
        """Scores and embeddings."""
        output, inner = self.network(self.taken(images))
        return flat(chosen(output, self.output)), pooled(inner)


def pooled(inner: object) -> Tensor:
    """Embeddings [N, size] from a layer's output, averaged over height and width if it has these."""
    if isinstance(inner, Tensor) and inner.is_floating_point():
        if inner.dim() == 2:
            return inner
        if inner.dim() == 4:
            return inner.mean((2, 3))
    what = str(list(inner.shape)) if isinstance(inner, Tensor) else f"a {type(inner).__name__}"
    raise ModelFileError(
        f"the output of the layer for --embeddings is {what}, not one vector for each image: {NAME_IT}"
    )


def check_embeddings(run: Callable[[Tensor], tuple[Tensor, Tensor]], side: int, *, pixels: bool) -> int:
    """The size of each embedding; raises ModelFileError where it depends on other images or not on its own image."""
    batches = probe_batches(side, pixels=pixels)
    batch = torch.cat(batches[:3])
    together = run(batch)[1].float()
    if together.dim() != 2 or len(together) != len(batch):
        raise ModelFileError(
            f"its embeddings have the shape {list(together.shape)} for a batch of {len(batch)}: {NAME_IT}"
        )
    if not torch.isfinite(together).all():
        raise ModelFileError("its embeddings have NaN or infinity for ordinary images: were its weights loaded?")
    alone = torch.cat([run(image[None])[1].float() for image in batch])
    if not torch.allclose(together, alone, atol=ALONE_TOLERANCE * max(1.0, float(together.abs().max()))):
        raise ModelFileError(f"the embedding of an image depends on the others in its batch: {NAME_IT}")
    # The embeddings of noise may all be zero vectors.
    others = run(torch.cat(batches[3:]))[1].float()
    if not (together - others[0]).any() and not (others - others[0]).any():
        raise ModelFileError(f"its embeddings are the same for every image: {NAME_IT}")
    return int(together.shape[1])


def embedding_difference(served: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The largest difference of embeddings: 1 minus the smallest cosine of an image's two embeddings.

    A zero vector has no direction: it is as another one whose length is at most `NO_LENGTH` of the longest.
    """
    one, other = torch.cat(list(served)).double(), torch.cat(list(expected)).double()
    lengths = torch.stack((one.norm(dim=1), other.norm(dim=1)))
    cosines = torch.nn.functional.cosine_similarity(one, other, dim=1, eps=1e-30)
    cosines = torch.where((lengths <= NO_LENGTH * lengths.max()).all(dim=0), 1.0, cosines)
    return max(0.0, 1.0 - float(cosines.min()))


class _Cut(nn.Module):
    """Wraps an eager network to return a pair: its output and the layer's output, by forward hooks.

    `classes` is its number of classes, which identifies the last layer.
    """

    def __init__(self, network: nn.Module, layer: str, classes: int) -> None:
        super().__init__()
        self.network = network
        self._auto, self._classes = layer == AUTO, classes
        self._seen: list[tuple[object, Tensor]] = []
        if self._auto:
            for module in network.modules():
                if isinstance(module, nn.Linear):
                    module.register_forward_hook(self._keep)
        else:
            modules = dict(network.named_modules())
            modules[_named(layer, modules)].register_forward_hook(self._keep)

    def forward(self, images: Tensor) -> tuple[object, object]:
        """The network's output, and the layer's."""
        self._seen.clear()
        output = self.network(images)
        seen = list(self._seen)
        self._seen.clear()
        if not seen:
            if self._auto:
                raise ModelFileError(f"none of its linear layers runs as a module: {NAME_IT}")
            raise ModelFileError("the layer that --embeddings names is not executed")
        if not self._auto:
            return output, seen[-1][1]
        heads = [given for given, out in seen if out.dim() == 2 and out.shape[1] == self._classes]
        if len(heads) != 1:
            what = f"{len(heads)} candidates for the last layer" if heads else "no linear layer at its end"
            raise ModelFileError(f"it has {what}: {NAME_IT}")
        return output, heads[0]

    def _keep(self, _: nn.Module, given: tuple[object, ...], out: Tensor) -> None:
        self._seen.append((given[0] if given else None, out))


def _named(layer: str, known: Iterable[str]) -> str:
    """The full name of a layer, which may be given by a unique last part; raises ModelFileError."""
    names = [name for name in known if name]
    if layer in names:
        return layer
    ends = [name for name in names if name.endswith(f".{layer}")]
    if len(ends) == 1:
        return ends[0]
    near = ends or difflib.get_close_matches(layer, names, n=3) or names[-3:]
    raise ModelFileError(f"it has no layer {layer!r} for --embeddings; its layers include: {', '.join(near)}")
