"""The resize of a given Pillow release: releases differ in the order of the two passes, and so in a few pixels.

Pillow resizes along one side, rounds to uint8, and resizes along the other (src/libImaging/Resample.c). Up to 12.1 the
width goes first; in 12.2 and 12.3 the height of what is more than 100 times as high as wide (PIL/Image.py); since 13.0
the height where it shrinks by more than twice as many pixels as the width.
gateway.ingest.resizing and the preprocessor's resizing.py implement the same rule.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from gateway.ingest.resizing import PILLOW, TORCH, Release, release_of, vertical_first

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["PILLOW", "TORCH", "ordered_resize", "release_of"]


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

        # torchvision computes the size, from an image without data.
        source = (image.height, image.width)
        size = v2.functional.resize(torch.empty((1, *source), device="meta"), list(resize_size), interpolation).shape[
            1:
        ]
        # Each resize changes only one side, so Pillow has no order to choose.
        first = (size[0], source[1]) if vertical_first(release, source, size) else (source[0], size[1])
        one: Image = v2.functional.resize(image, list(first), interpolation)
        both: Image = v2.functional.resize(one, list(size), interpolation)
        return both

    return resized
