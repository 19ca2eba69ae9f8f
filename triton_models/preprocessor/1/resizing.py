"""Resize and crop a PIL image as torchvision and transformers do: by exact_resize, or Pillow, with the same pixels."""

import enum
from dataclasses import dataclass

import numpy as np
import PIL
from numpy.typing import NDArray
from PIL import Image

try:
    import exact_resize
except ImportError:  # Pillow itself makes the same pixels, in six times the time
    exact_resize = None

MAX_ASPECT = 4
"""If one side is more than this many times the other, its ends are cut off before the resize; the crop drops them."""

PROBES = ((300, 400), (400, 101), (64, 250), (7, 5), (24, 6))
"""Heights and widths of images on which exact_resize is compared with Pillow before it is used."""


class InterpolationMode(enum.Enum):
    """Torchvision's names; importing its own enumeration would take seconds at the start of a process."""

    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"


FILTERS = {mode: Image.Resampling[mode.name.removesuffix("_EXACT")] for mode in InterpolationMode}
"""Pillow's filters; its nearest is torchvision's nearest-exact."""

WITHOUT_KERNEL = {InterpolationMode.NEAREST, InterpolationMode.NEAREST_EXACT}
"""Interpolations that exact_resize does not have."""


@dataclass(frozen=True)
class CentreCrop:
    """The centre of a resized image: `size` is its height and width.

    `rounding` of half of the surplus is even, as in torchvision and timm, or floor, as in transformers: they differ by
    a pixel where the surplus is 3, 7, 11, …
    """

    size: list[int]
    rounding: str = "even"

    def __post_init__(self) -> None:
        if self.rounding not in {"even", "floor"}:
            raise ValueError(f"crop_rounding {self.rounding!r} is not even or floor")

    def corner(self, height: int, width: int) -> tuple[int, int]:
        """Top and left of the crop of an image."""
        top, left = ((side - crop) / 2 for side, crop in zip((height, width), self.size, strict=True))
        return (round(top), round(left)) if self.rounding == "even" else (int(top), int(left))


class PillowResize:
    """Resize and CenterCrop of PIL images: by exact_resize if it makes the installed Pillow's pixels."""

    def __init__(self, size: list[int], crop: CentreCrop, interpolation: InterpolationMode) -> None:
        self.size, self.crop, self.interpolation = size, crop, interpolation
        major, minor = map(int, PIL.__version__.split(".")[:2])
        self.release = (major, minor)
        self.why_not = self._why_not()

    def described(self) -> str:
        """The name of the resize library, for the log."""
        if not self.why_not:
            return f"exact_resize ({exact_resize.instructions()}), as Pillow {PIL.__version__} does"
        return f"Pillow {PIL.__version__}, because {self.why_not}"

    def __call__(self, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """uint8 [H, W, 3] of any size → uint8 of the crop's size."""
        return self._by_pillow(pixels) if self.why_not else self._by_kernel(pixels)

    def _by_kernel(self, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        size = self._resized(pixels)
        corner = self.crop.corner(*size)
        target = np.empty((*self.crop.size, 3), np.uint8)
        exact_resize.resize(pixels, target, size, filter=self.interpolation.value, corner=corner, pillow=self.release)
        return target

    def _by_pillow(self, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        size = self._resized(pixels)
        image = Image.fromarray(pixels).resize((size[1], size[0]), FILTERS[self.interpolation])
        (top, left), (height, width) = self.crop.corner(*size), self.crop.size
        return np.array(image.crop((left, top, left + width, top + height)))

    def _resized(self, pixels: NDArray[np.uint8]) -> tuple[int, int]:
        """Height and width after the resize, rounded as in torchvision."""
        if len(self.size) == 2:
            return self.size[0], self.size[1]
        shorter, longer = sorted(pixels.shape[:2])
        ends = int(self.size[0] * longer / shorter)
        return (ends, self.size[0]) if pixels.shape[0] > pixels.shape[1] else (self.size[0], ends)

    def _why_not(self) -> str:
        """Why the kernel cannot be used; "" if it can."""
        if self.interpolation in WITHOUT_KERNEL:
            return f"exact_resize has no {self.interpolation.value}"
        if exact_resize is None:
            return "exact_resize is not installed; the pixels are the same, the time is six times its"
        generator = np.random.default_rng(0)
        for shape in PROBES:
            pixels = generator.integers(0, 256, (*shape, 3), np.uint8)
            if not np.array_equal(self._by_kernel(pixels), self._by_pillow(pixels)):
                return (
                    f"exact_resize makes other pixels of {shape[0]} by {shape[1]} on this machine: please report that"
                )
        return ""


def without_ends(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The middle of an image [H, W, 3] whose longer side is more than MAX_ASPECT times its shorter one.

    Resized by its shorter side, an image of 16384 by 1 would take gigabytes, almost all outside of the centre crop.
    """
    height, width = pixels.shape[:2]
    longest = MAX_ASPECT * min(height, width)
    top, left = max(0, (height - longest) // 2), max(0, (width - longest) // 2)
    # The same amount from both ends, so that the centre stays the same.
    return pixels[top : height - top, left : width - left]
