"""Resize and crop as torchvision does with a PIL image: by exact_resize, or by Pillow itself, with the same pixels."""

import enum
import re

import numpy as np
import PIL
from numpy.typing import NDArray
from PIL import Image

try:
    import exact_resize
except ImportError:  # Pillow itself makes the same pixels, in six times the time
    exact_resize = None

MAX_ASPECT = 4
"""Where one side is more than this many times the other, its ends go before the resize: the crop drops them anyway."""

PROBES = ((300, 400), (400, 101), (64, 250), (7, 5), (24, 6))
"""Heights and widths of pictures that exact_resize has to resize as Pillow does before it is trusted with others."""


class InterpolationMode(enum.Enum):
    """Torchvision's names. Its own enumeration would take a process seconds more to start."""

    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"


FILTERS = {mode: Image.Resampling[mode.name.removesuffix("_EXACT")] for mode in InterpolationMode}
"""What Pillow calls them; its nearest is the exact one."""

ORDERLESS = {InterpolationMode.NEAREST, InterpolationMode.NEAREST_EXACT}
"""Interpolations without sums, and so without passes."""


class PillowResize:
    """Resize and CenterCrop as torchvision has them for PIL images: by exact_resize where it makes the same pixels.

    `library` is "pillow" for the installed one, or such as "pillow-12.1" for the one that training had: they differ in
    which pass comes first. Raises ValueError where it is another.
    """

    def __init__(self, size: list[int], crop: list[int], interpolation: InterpolationMode, library: str) -> None:
        found = re.fullmatch(r"pillow(?:-(\d{1,3})\.(\d{1,3}))?", library)
        if found is None:
            raise ValueError(f"resize_library {library!r} is not torch, pillow, or a Pillow's version: pillow-12.1")
        self.size, self.crop, self.interpolation = size, crop, interpolation
        installed = tuple(map(int, PIL.__version__.split(".")[:2]))
        self.release: tuple[int, int] = (int(found[1]), int(found[2])) if found[1] else installed
        self.installed = found[1] is None
        self.why_not = self._why_not()

    def described(self) -> str:
        """What resizes, for the log."""
        wanted = "as Pillow {}.{} does".format(*self.release)
        if not self.why_not:
            return f"exact_resize ({exact_resize.instructions()}), {wanted}"
        return f"Pillow {PIL.__version__}, {wanted}, because {self.why_not}"

    def __call__(self, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """uint8 [H, W, 3] of any size → uint8 of crop_size."""
        return self._by_pillow(pixels) if self.why_not else self._by_kernel(pixels)

    def _by_kernel(self, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        size = self._resized(pixels)
        corner = self._corner(size)
        target = np.empty((*self.crop, 3), np.uint8)
        exact_resize.resize(pixels, target, size, filter=self.interpolation.value, corner=corner, pillow=self.release)
        return target

    def _by_pillow(self, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        image, size, method = Image.fromarray(pixels), self._resized(pixels), FILTERS[self.interpolation]
        if not self.installed and self.interpolation not in ORDERLESS:
            # One side after the other: resized alone, neither has an order.
            vertical_first = self._vertical_first(pixels, size)
            first = (image.width, size[0]) if vertical_first else (size[1], image.height)
            image = image.resize(first, method)
        image = image.resize((size[1], size[0]), method)
        top, left = self._corner(size)
        return np.array(image.crop((left, top, left + self.crop[1], top + self.crop[0])))

    def _corner(self, size: tuple[int, int]) -> tuple[int, int]:
        """Where the crop begins, top and left, rounded as torchvision rounds it."""
        return round((size[0] - self.crop[0]) / 2), round((size[1] - self.crop[1]) / 2)

    def _resized(self, pixels: NDArray[np.uint8]) -> tuple[int, int]:
        """Height and width after the resize, rounded as torchvision rounds them."""
        if len(self.size) == 2:
            return self.size[0], self.size[1]
        shorter, longer = sorted(pixels.shape[:2])
        ends = int(self.size[0] * longer / shorter)
        return (ends, self.size[0]) if pixels.shape[0] > pixels.shape[1] else (self.size[0], ends)

    def _vertical_first(self, pixels: NDArray[np.uint8], size: tuple[int, int]) -> bool:
        height, width = pixels.shape[:2]
        if self.release >= (13, 0):
            return height > size[0] and height - size[0] > 2 * (width - size[1])
        return self.release >= (12, 2) and height > size[0] and height > 100 * width

    def _why_not(self) -> str:
        """Why the kernel is not to be used; "" where it is."""
        if self.interpolation in ORDERLESS:
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

    Resized by its shorter side, an image of 16384 by 1 would take gigabytes, of which the centre crop keeps a speck.
    """
    height, width = pixels.shape[:2]
    longest = MAX_ASPECT * min(height, width)
    top, left = max(0, (height - longest) // 2), max(0, (width - longest) // 2)
    # As much from one end as from the other, so that the centre stays where it is.
    return pixels[top : height - top, left : width - left]
