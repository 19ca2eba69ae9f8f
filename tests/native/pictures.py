"""Images, and Pillow's results for them."""

import numpy as np
import PIL
from numpy.typing import NDArray
from PIL import Image

Size = tuple[int, int]
Pixels = NDArray[np.uint8]

INSTALLED = tuple(map(int, PIL.__version__.split(".")[:2]))


def noise(height: int, width: int, seed: int = 0) -> Pixels:
    """Pixels of which half are black or white, so that sums are clipped at both ends."""
    generator = np.random.default_rng(seed)
    pixels = generator.integers(0, 256, (height, width, 3), np.uint8)
    return np.where(generator.random(pixels.shape) < 0.5, pixels, pixels // 128 * np.uint8(255))


def by_pillow(pixels: Pixels, size: Size, kernel: str) -> Pixels:
    """The installed Pillow's result; size is height and width."""
    return np.asarray(Image.fromarray(pixels).resize(size[::-1], Image.Resampling[kernel.upper()]))


def with_gap(pixels: Pixels, gap: int) -> Pixels:
    """The same pixels with `gap` pixels between rows, in a buffer that ends with the last row."""
    height, width, _ = pixels.shape
    strides = (3 * (width + gap), 3, 1)
    buffer = np.zeros((height - 1) * strides[0] + 3 * width, np.uint8)
    view = np.lib.stride_tricks.as_strided(buffer, pixels.shape, strides)
    view[:] = pixels
    return view


def pass_by_pass(pixels: Pixels, size: Size, kernel: str, *, vertical_first: bool) -> Pixels:
    """The same in a chosen order, for any installed Pillow: one side alone has no order."""
    between = (size[0], pixels.shape[1]) if vertical_first else (pixels.shape[0], size[1])
    return by_pillow(by_pillow(pixels, between, kernel), size, kernel)
