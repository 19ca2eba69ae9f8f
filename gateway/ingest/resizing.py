"""The resize of a model's preprocessor, for images that the gateway decodes: it makes the same pixels.

The preprocessor leaves resized images unchanged to the last bit; they have a hundredth of a large image's pixels. The
preprocessor's resizing.py has the same rules.
"""

from collections.abc import Mapping
from dataclasses import dataclass

PILLOW, TORCH = "pillow", "torch"
"""Values of the parameter resize_library: the pixels of the installed Pillow, or of torch's own resize."""

EVEN, FLOOR = "even", "floor"
"""Values of the parameter crop_rounding: how torchvision and timm, or transformers, round the crop's corner."""
ROUNDINGS = frozenset({EVEN, FLOOR})

MAX_ASPECT = 4
"""If one side is more than this many times the other, its ends are cropped before a resize by the shorter side."""
INTERPOLATIONS = frozenset({"nearest", "nearest-exact", "box", "bilinear", "hamming", "bicubic", "lanczos"})
FAST_OVERSAMPLING = 4
"""A fast decoder keeps at least this many times the pixels of each side of the resized image."""


@dataclass(frozen=True, slots=True)
class Resize:
    """How a preprocessor resizes, and whether the decoder may reduce large JPEGs first (`fast`).

    `size` is height and width in pixels, or one number for the shorter side.
    """

    size: tuple[int, ...]
    interpolation: str
    fast: bool = False

    def size_of(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of a resized image, which never has more pixels."""
        top, left = self.ends(height, width)
        size = self.resized(height - 2 * top, width - 2 * left)
        return size if size[0] * size[1] < height * width else (height, width)

    def ends(self, height: int, width: int) -> tuple[int, int]:
        """Rows cropped at the top and at the bottom, and columns at the left and at the right."""
        if len(self.size) == 2:
            return 0, 0
        longest = MAX_ASPECT * min(height, width)
        return max(0, (height - longest) // 2), max(0, (width - longest) // 2)

    def resized(self, height: int, width: int) -> tuple[int, int]:
        """Height and width that the preprocessor gives an image without its ends, larger or smaller."""
        if len(self.size) == 2:
            return self.size[0], self.size[1]
        shorter, longer = sorted((height, width))
        ends = int(self.size[0] * longer / shorter)  # as torchvision rounds it
        return (ends, self.size[0]) if height > width else (self.size[0], ends)


@dataclass(frozen=True, slots=True)
class TensorInput:
    """How a decoder makes the input of a model that takes tensors: one image's part of it.

    `crop` is height and width of the centre crop after the resize, whose corner is rounded by `crop_rounding`. `mean`
    and `std` are red, green and blue on a scale from 0 to 1; uint8 has neither: its values are pixels.
    """

    resize: Resize
    crop: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    datatype: str = "fp32"
    """A name of DATATYPES."""
    layout: str = "nchw"
    """nchw or nhwc."""
    channels: str = "rgb"
    """rgb or bgr."""
    crop_rounding: str = EVEN

    def corner(self, height: int, width: int) -> tuple[int, int]:
        """Top and left of the crop of a resized image."""
        top, left = (height - self.crop[0]) / 2, (width - self.crop[1]) / 2
        return (round(top), round(left)) if self.crop_rounding == EVEN else (int(top), int(left))

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of one image's tensor."""
        height, width = self.crop
        return (3, height, width) if self.layout == "nchw" else (height, width, 3)

    @property
    def nbytes(self) -> int:
        """Bytes of one image's tensor."""
        return 3 * self.crop[0] * self.crop[1] * DATATYPES[self.datatype]


DATATYPES = {"fp32": 4, "fp16": 2, "uint8": 1}
"""The types of a tensor's values, with their sizes in bytes."""


def resize_of(parameters: Mapping[str, str], *, fast: bool) -> Resize | None:
    """The resize of a preprocessor's parameters in config.pbtxt; None if it is unknown, or torch's."""
    library = parameters.get("resize_library", "")
    interpolation = parameters.get("interpolation", "")
    size = sizes(parameters.get("resize_size", ""))
    if library != PILLOW or interpolation not in INTERPOLATIONS or len(size) not in {1, 2} or min(size) < 1:
        return None
    return Resize(size, interpolation, fast)


def sizes(text: str) -> tuple[int, ...]:
    """Parse lengths in pixels, separated by commas; () for anything else, as in a custom preprocessor."""
    numbers = [number.strip() for number in text.split(",")]
    return tuple(map(int, numbers)) if all(number.isdecimal() for number in numbers) else ()
