"""Brightness and sharpness of an image, by its pixels at a small size, so that they are cheap and comparable."""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

MEASURED_SIDE = 256
"""Pixels of the shorter side at which images are measured; smaller images keep their size."""
_LUMA = np.array([0.299, 0.587, 0.114], np.float32)
"""The weights of red, green and blue in ITU-R BT.601."""
_HEADER = re.compile(rb"P6\s+(\d+)\s+(\d+)\s+255\s")


@dataclass(frozen=True, slots=True)
class ImageMeasures:
    """`brightness`: the mean luma, 0 (black) to 1. `sharpness`: see `measures_of`; it falls if an image is blurred."""

    brightness: float
    sharpness: float


def measures_of(pixels: NDArray[np.uint8]) -> ImageMeasures:
    """Measure RGB pixels [height, width, 3], whose shorter side is MEASURED_SIDE or less.

    The sharpness is the variance of the Laplacian (J. L. Pech-Pacheco et al., ICPR 2000) divided by the variance of the
    luma, so that it does not depend on contrast and exposure; 0 for an image of one colour, or with fewer than 3 × 3
    pixels.
    """
    luma = pixels.astype(np.float32) @ (_LUMA / 255)
    variance = float(luma.var(dtype=np.float64))
    laplacian = luma[:-2, 1:-1] + luma[2:, 1:-1] + luma[1:-1, :-2] + luma[1:-1, 2:] - 4 * luma[1:-1, 1:-1]
    # Rounding of the luma gives pixels of one colour a variance of some 1e-15.
    is_plain = variance < 1e-9 or not laplacian.size
    sharpness = 0.0 if is_plain else float(laplacian.var(dtype=np.float64)) / variance
    return ImageMeasures(float(luma.mean(dtype=np.float64)), sharpness)


def pixels_of(ppm: bytes) -> NDArray[Any]:
    """The pixels, uint8 [height, width, 3], of an uncompressed PPM (P6); raises ValueError if it is damaged."""
    header = _HEADER.match(ppm)
    if header is None:
        raise ValueError("not a PPM of 8 bits")
    width, height = map(int, header.groups())
    return np.frombuffer(ppm, np.uint8, height * width * 3, header.end()).reshape(height, width, 3)
