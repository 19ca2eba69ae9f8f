"""Resizing a picture as a model's preprocessor does: for the children that decode, not for the process that serves."""

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from gateway.ingest.resizing import Release, Resize, vertical_first

try:
    import exact_resize
except ImportError:  # Pillow makes the same pixels, in six times the time
    exact_resize = None  # type: ignore[assignment]

_FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "nearest-exact": Image.Resampling.NEAREST,
    "box": Image.Resampling.BOX,
    "bilinear": Image.Resampling.BILINEAR,
    "hamming": Image.Resampling.HAMMING,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
_PROBES = ((300, 400), (400, 101), (24, 6))
"""Heights and widths of pictures that exact_resize has to resize as Pillow does before it is trusted with others."""


def resample(pixels: NDArray[np.uint8], resize: Resize) -> NDArray[np.uint8]:
    """Resize an upright picture, uint8 [height, width, 3]; one that would not shrink stays as it is."""
    height, width = pixels.shape[:2]
    size = resize.size_of(height, width)
    if size == (height, width):
        return pixels
    top, left = resize.ends(height, width)
    middle = pixels[top : height - top, left : width - left]
    by_kernel = _kernel_is_exact(resize.interpolation, resize.pillow)
    return (_by_kernel if by_kernel else _by_pillow)(middle, size, resize.interpolation, resize.pillow)


@cache
def _kernel_is_exact(interpolation: str, release: Release) -> bool:
    """Whether exact_resize is there, has the filter, and makes Pillow's pixels on this machine."""
    if exact_resize is None or interpolation not in exact_resize.FILTERS:
        return False
    generator, size = np.random.default_rng(0), (16, 12)
    probes = [generator.integers(0, 256, (*shape, 3), np.uint8) for shape in _PROBES]
    return all(
        np.array_equal(_by_kernel(probe, size, interpolation, release), _by_pillow(probe, size, interpolation, release))
        for probe in probes
    )


def _by_kernel(
    pixels: NDArray[np.uint8], size: tuple[int, int], interpolation: str, release: Release
) -> NDArray[np.uint8]:
    target: NDArray[np.uint8] = np.empty((*size, 3), np.uint8)
    exact_resize.resize(pixels.data, target.data, size, filter=interpolation, pillow=release)
    return target


def _by_pillow(
    pixels: NDArray[np.uint8], size: tuple[int, int], interpolation: str, release: Release
) -> NDArray[np.uint8]:
    image: Any = Image.fromarray(pixels)
    resampling = _FILTERS[interpolation]
    if resampling is not Image.Resampling.NEAREST:
        # One side after the other: resized alone, neither has an order.
        first = (image.width, size[0]) if vertical_first(release, pixels.shape, size) else (size[1], image.height)
        image = image.resize(first, resampling)
    return np.asarray(image.resize((size[1], size[0]), resampling))
