"""Recognises networks of other tasks than classification by the names and the shapes of their outputs."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from gateway_models.networks.file_kinds import ModelFileError

ONLY = "only whole images are classified"
SEGMENTATION = f"a map of classes, scores for each pixel, as segmentation gives: {ONLY}"
DETECTION = f"boxes around objects, as detection gives: {ONLY}"
BACKBONE = (
    "a row of numbers for each part of the image, as a backbone gives: it lacks its classification layer. Add one, "
    "train it, and save both together"
)
STRIDES = (8, 16, 32)
"""Detectors of the YOLO family give a box for each cell of these sizes in pixels, or three boxes."""
SUPPRESSED = 6
"""Numbers of a box after non-maximum suppression: four corners, the score and the class."""
COARSEST = 16
"""A map with cells of this many pixels or more is one of features."""


def check_task(outputs: Mapping[str, Sequence[int | None]], side: int) -> None:
    """Raise ModelFileError where outputs, by name, show that a network does not classify images of `side` pixels.

    None stands for a size that is not known. Outputs of a classifier, and those that say nothing, pass.
    """
    task = _task(outputs, side)
    if task:
        shapes = ", ".join(f"{name} {['N', *_text(shape)[1:]]}" for name, shape in outputs.items() if shape)
        raise ModelFileError(f"it gives {task} (its outputs: {shapes.replace(chr(39), '')})")


def shapes_of(output: object) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors in a network's output, by name; those of the first image where they are a list."""
    found: dict[str, tuple[int, ...]] = {}
    _walk(output, "output", found)
    return found


def _walk(output: object, name: str, found: dict[str, tuple[int, ...]]) -> None:
    if isinstance(output, Mapping):
        for key, part in output.items():
            _walk(part, str(key), found)
    elif isinstance(output, (list, tuple)):
        for number, part in enumerate(output):
            _walk(part, f"{name} {number}", found)
    elif (shape := getattr(output, "shape", None)) is not None:
        found.setdefault(name, tuple(shape))


def _task(outputs: Mapping[str, Sequence[int | None]], side: int) -> str:
    if any("box" in name.lower() and shape[-1:] in ((4,), [4]) for name, shape in outputs.items()):
        return DETECTION
    cells = sum((side // stride) ** 2 for stride in STRIDES)
    for shape in outputs.values():
        if len(shape) == 3 and ({cells, 3 * cells} & set(shape[1:]) or shape[2] == SUPPRESSED):
            return DETECTION
    if any(len(shape) == 2 for shape in outputs.values()):
        return ""
    for shape in outputs.values():
        wide = sorted(size for size in shape[1:] if size and size > 1)
        if len(shape) == 4 and len(wide) >= 2:
            # The sizes are height, width and channels; the two that are equal are the sides.
            cell = next((one for one, other in pairwise(wide) if one == other), wide[0])
            return BACKBONE if cell * COARSEST <= side else SEGMENTATION
        if len(shape) == 3 and len(wide) == 2:
            return SEGMENTATION if shape[1] == shape[2] == side else BACKBONE
    return ""


def _text(shape: Sequence[int | None]) -> list[object]:
    return ["?" if size is None else size for size in shape]
