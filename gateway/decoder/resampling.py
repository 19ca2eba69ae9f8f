"""Resizing an image as a model's preprocessor does: to the last bit."""

from functools import cache
from typing import Any

import numpy as np
import PIL
from numpy.typing import NDArray
from PIL import Image

from gateway.ingest.resizing import Resize, TensorInput

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
_MAJOR, _MINOR = map(int, PIL.__version__.split(".")[:2])
_PROBES = ((300, 400), (400, 101), (24, 6))
"""Heights and widths of images that exact_resize has to resize as Pillow does before it is trusted with others."""


def resample(pixels: NDArray[np.uint8], resize: Resize) -> NDArray[np.uint8]:
    """Resize an upright image, uint8 [height, width, 3]; one that would not shrink stays as it is."""
    height, width = pixels.shape[:2]
    size = resize.size_of(height, width)
    if size == (height, width):
        return pixels
    top, left = resize.ends(height, width)
    middle = pixels[top : height - top, left : width - left]
    by_kernel = _kernel_is_exact(resize.interpolation)
    return (_by_kernel if by_kernel else _by_pillow)(middle, size, resize.interpolation)


def resample_and_crop(pixels: NDArray[np.uint8], tensor: TensorInput) -> NDArray[np.uint8]:
    """Resize and crop an upright image as a preprocessor does: uint8 [height, width, 3] of the crop."""
    height, width = pixels.shape[:2]
    resize, crop = tensor.resize, tensor.crop
    top, left = resize.ends(height, width)
    middle = pixels[top : height - top, left : width - left]
    size = resize.resized(*middle.shape[:2])
    corner = tensor.corner(*size)
    if _kernel_is_exact(resize.interpolation):
        return _by_kernel(middle, size, resize.interpolation, crop, corner)
    whole = _by_pillow(middle, size, resize.interpolation)
    return whole[corner[0] : corner[0] + crop[0], corner[1] : corner[1] + crop[1]]


@cache
def _kernel_is_exact(interpolation: str) -> bool:
    """Whether exact_resize is there, has the filter, and makes Pillow's pixels on this machine."""
    if exact_resize is None or interpolation not in exact_resize.FILTERS:
        return False
    generator, size = np.random.default_rng(0), (16, 12)
    probes = [generator.integers(0, 256, (*shape, 3), np.uint8) for shape in _PROBES]
    return all(
        np.array_equal(_by_kernel(probe, size, interpolation), _by_pillow(probe, size, interpolation))
        for probe in probes
    )


def _by_kernel(
    pixels: NDArray[np.uint8],
    size: tuple[int, int],
    interpolation: str,
    crop: tuple[int, int] | None = None,
    corner: tuple[int, int] = (0, 0),
) -> NDArray[np.uint8]:
    target: NDArray[np.uint8] = np.empty((*(crop or size), 3), np.uint8)
    exact_resize.resize(pixels.data, target.data, size, filter=interpolation, corner=corner, pillow=(_MAJOR, _MINOR))
    return target


def _by_pillow(pixels: NDArray[np.uint8], size: tuple[int, int], interpolation: str) -> NDArray[np.uint8]:
    image: Any = Image.fromarray(pixels)
    return np.asarray(image.resize((size[1], size[0]), _FILTERS[interpolation]))
