"""Which Pillow training resized with: releases differ in the order of the two passes, and so in a few pixels.

Pillow resizes along one side, rounds to uint8, and resizes along the other (src/libImaging/Resample.c). Up to 12.1 the
width goes first; in 12.2 and 12.3 the height of what is more than 100 times as high as wide (PIL/Image.py); since 13.0
the height where it shrinks by more than twice as many pixels as the width.
The preprocessor's model.py has the same rule.
"""

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL.Image import Image

PILLOW, TORCH = "pillow", "torch"
"""Values of the parameter resize_library beside Pillow's releases: the installed one, and torch's own resize."""
Release = tuple[int, int]
_RELEASE = re.compile(r"pillow-(\d{1,3})\.(\d{1,3})")


def release_of(library: str) -> Release | None:
    """The (12, 1) of pillow-12.1; None where no release is named."""
    found = _RELEASE.fullmatch(library)
    return (int(found[1]), int(found[2])) if found else None


def vertical_first(release: Release, source: Sequence[int], size: Sequence[int]) -> bool:
    """Whether that release resizes the height before the width; both are height and width."""
    rows, columns = source[0] - size[0], source[1] - size[1]
    if release >= (13, 0):
        return rows > 0 and rows > 2 * columns
    return release >= (12, 2) and rows > 0 and source[0] > 100 * source[1]


def ordered_resize(
    resize_size: Sequence[int],
    interpolation: Any,  # noqa: ANN401  # torchvision is not typed
    release: Release | None,
) -> "Callable[[Image], Image]":
    """Resize PIL images as torchvision does, by the installed Pillow, with the passes in the order of a release."""
    from torchvision.transforms import v2

    resize: Callable[[Image], Image] = v2.Resize(list(resize_size), interpolation, antialias=True)
    if release is None:
        return resize

    def resized(image: "Image") -> "Image":
        import torch

        # The size is torchvision's own, of an image without data.
        source = (image.height, image.width)
        size = v2.functional.resize(torch.empty((1, *source), device="meta"), list(resize_size), interpolation).shape[
            1:
        ]
        # Resized along one side alone, an image has no order.
        first = (size[0], source[1]) if vertical_first(release, source, size) else (source[0], size[1])
        one: Image = v2.functional.resize(image, list(first), interpolation)
        both: Image = v2.functional.resize(one, list(size), interpolation)
        return both

    return resized
