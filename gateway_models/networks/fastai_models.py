"""Learners of fastai (`learn.export`): their network, vocabulary, size and normalisation, in a process of their own.

Opening one unpickles the file, which may run any code: only trusted files are opened.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gateway_models.networks import onnx_graph
from gateway_models.networks.file_kinds import ModelFileError
from gateway_models.networks.frameworks import Description
from gateway_models.repository.preprocessing import Preprocessing, PreprocessingError
from gateway_models.repository.spec import ModelSpec

PASSED = frozenset({"ToTensor", "IntToFloatTensor", "Normalize"})
"""Transforms without an effect on an image's size."""
WARPS = frozenset({"AffineCoordTfm", "Brightness", "Contrast", "Flip", "LightingTfm", "Rotate", "Warp", "Zoom"})
"""Augmentations, which leave validation images as they are, but for their `size`."""


def open_learner(spec: ModelSpec) -> "LearnerNetwork":
    """Unpickle a Learner; raises ModelFileError."""
    from fastai.learner import load_learner

    try:
        learner = load_learner(spec.source, cpu=True)
    except Exception as exc:  # a pickle may raise anything
        reason = next(iter(str(exc).strip().splitlines()), type(exc).__name__)
        raise ModelFileError(
            f"fastai cannot load it: {reason}. Functions of your own, such as a get_y, must be importable where it is "
            "loaded: export the Learner with those of fastai"
        ) from exc
    if "BCEWithLogits" in type(learner.loss_func).__name__ and not spec.multi_label:
        raise ModelFileError("it was trained to give an image several labels: add --multi-label")
    return LearnerNetwork(learner)


class LearnerNetwork(nn.Module):
    """The network of a Learner, from normalised images fp32 [N, 3, H, W] to tensors of torch's own type."""

    def __init__(self, learner: Any) -> None:  # noqa: ANN401  # fastai is imported where it is used
        super().__init__()
        self.network = learner.model.eval()
        self.description = Description(_labels(learner), _preprocessing(learner))

    def forward(self, images: Tensor) -> Tensor:
        """Scores [N, classes]."""
        scores: Tensor = self.network(images).as_subclass(Tensor)
        return scores

    def __call__(self, images: Tensor) -> Tensor:
        """The same, without gradients."""
        with torch.no_grad():
            scores: Tensor = super().__call__(images)
        return scores

    def write_onnx(self, path: Path, side: int) -> None:
        """Write the network as ONNX for images of `side` pixels; raises ModelFileError."""
        import onnx

        onnx.save(onnx_graph.from_module(self, side), path)


def _labels(learner: Any) -> tuple[str, ...]:  # noqa: ANN401  # fastai is imported where it is used
    vocab = getattr(learner.dls, "vocab", None)
    if vocab is None or (len(vocab) and not isinstance(vocab[0], (str, int, float, bool))):
        raise ModelFileError("it has no vocabulary of one category: only classifiers of whole images are served")
    return tuple(map(str, vocab))


def _preprocessing(learner: Any) -> Preprocessing | None:  # noqa: ANN401
    """How the Learner prepares the images that it predicts; None where that cannot be said by these steps."""
    item, batch = _transforms(learner.dls.after_item), _transforms(learner.dls.after_batch)
    names = [type(step).__name__ for step in (*item, *batch)]
    resizes = [step for step in item if type(step).__name__ == "Resize"]
    known = PASSED | WARPS | {"Resize"}
    if len(resizes) != 1 or not known.issuperset(names):
        return None
    height, width = _size(resizes[0].size)
    method = str(getattr(resizes[0], "method", ""))
    for step in batch:
        # A size of the batch's transforms, such as aug_transforms(size=224), is the network's input size.
        if type(step).__name__ in WARPS and getattr(step, "size", None):
            height, width = _size(step.size)
    if height != width or method not in {"crop", "squish"}:
        return None
    mean, std = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    for step in batch:
        if type(step).__name__ == "Normalize":
            mean, std = _three(step.mean), _three(step.std)
    try:
        return Preprocessing((height, height) if method == "squish" else (height,), height, "bilinear", mean, std)
    except PreprocessingError:
        return None


def _transforms(pipeline: Any) -> Sequence[Any]:  # noqa: ANN401
    return list(getattr(pipeline, "fs", ()))


def _size(size: int | Iterable[int]) -> tuple[int, int]:
    """Height and width; fastai's own order is width and height."""
    if isinstance(size, int):
        return size, size
    width, height = size
    return height, width


def _three(values: torch.Tensor) -> tuple[float, float, float]:
    # The values are fp32: 0.485 and not 0.48500001430511475.
    one, two, three = (round(value, 6) for value in values.flatten().tolist())
    return one, two, three
