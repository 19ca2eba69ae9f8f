"""Requirements and differences of embeddings; `onnx_features` finds them in a network."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gateway_models.networks.file_kinds import ModelFileError
from gateway_models.networks.probe import ALONE_TOLERANCE, probe_batches

ADVICE = "--embeddings gives the input of the last linear layer: end the network in one, trained or not"
NO_LENGTH = 1e-5
"""An embedding shorter than this part of the longest one is rounding noise, such as the embedding of an even image."""


def check_embeddings(run: Callable[[Tensor], tuple[Tensor, Tensor]], side: int, *, pixels: bool) -> int:
    """The size of each embedding; raises ModelFileError where it depends on other images or not on its own image."""
    batches = probe_batches(side, pixels=pixels)
    batch = torch.cat(batches[:3])
    together = run(batch)[1].float()
    if together.dim() != 2 or len(together) != len(batch):
        raise ModelFileError(
            f"its embeddings have the shape {list(together.shape)} for a batch of {len(batch)}: {ADVICE}"
        )
    if not torch.isfinite(together).all():
        raise ModelFileError("its embeddings have NaN or infinity for ordinary images: were its weights loaded?")
    alone = torch.cat([run(image[None])[1].float() for image in batch])
    if not torch.allclose(together, alone, atol=ALONE_TOLERANCE * max(1.0, float(together.abs().max()))):
        raise ModelFileError(f"the embedding of an image depends on the others in its batch: {ADVICE}")
    # The embeddings of noise may all be zero vectors.
    others = run(torch.cat(batches[3:]))[1].float()
    if not (together - others[0]).any() and not (others - others[0]).any():
        raise ModelFileError(f"its embeddings are the same for every image: {ADVICE}")
    return int(together.shape[1])


def embedding_difference(served: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The largest difference of embeddings: 1 minus the smallest cosine of an image's two embeddings.

    A zero vector has no direction: it equals another vector whose length is at most `NO_LENGTH` of the longest.
    """
    one, other = torch.cat(list(served)).double(), torch.cat(list(expected)).double()
    lengths = torch.stack((one.norm(dim=1), other.norm(dim=1)))
    cosines = torch.nn.functional.cosine_similarity(one, other, dim=1, eps=1e-30)
    cosines = torch.where((lengths <= NO_LENGTH * lengths.max()).all(dim=0), 1.0, cosines)
    return max(0.0, 1.0 - float(cosines.min()))
