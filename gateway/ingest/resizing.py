"""A model's own resize, done where a picture is decoded: the pixels that its preprocessor would have made of it.

What is resized already stays as it is there, to the last bit, and is a hundredth of a large picture's pixels. The
preprocessor's resizing.py has the same rules.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version

PILLOW, TORCH = "pillow", "torch"
"""Values of the parameter resize_library beside Pillow's releases: the installed one, and torch's own resize."""
Release = tuple[int, int]
_RELEASE = re.compile(r"pillow-(\d{1,3})\.(\d{1,3})")

MAX_ASPECT = 4
"""Where one side is more than this many times the other, its ends go before a resize by the shorter side."""
INTERPOLATIONS = frozenset({"nearest", "nearest-exact", "box", "bilinear", "hamming", "bicubic", "lanczos"})
FAST_OVERSAMPLING = 4
"""A fast decoder leaves at least so many times the pixels of each side that the resize asks for."""


def release_of(library: str) -> Release | None:
    """The (12, 1) of pillow-12.1; None where no release is named."""
    found = _RELEASE.fullmatch(library)
    return (int(found[1]), int(found[2])) if found else None


def vertical_first(release: Release, source: Sequence[int], size: Sequence[int]) -> bool:
    """Whether that release of Pillow resizes the height before the width; both are height and width."""
    rows, columns = source[0] - size[0], source[1] - size[1]
    if release >= (13, 0):
        return rows > 0 and rows > 2 * columns
    return release >= (12, 2) and rows > 0 and source[0] > 100 * source[1]


@dataclass(frozen=True, slots=True)
class Resize:
    """How a preprocessor resizes, and whether the decoder may leave out what hardly shows (`fast`).

    `size` is height and width in pixels, or one number for the shorter side; `pillow` the release whose pixels are
    wanted.
    """

    size: tuple[int, ...]
    interpolation: str
    pillow: Release
    fast: bool = False

    def size_of(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of what is made of a picture: never more pixels than it has."""
        top, left = self.ends(height, width)
        size = self._resized(height - 2 * top, width - 2 * left)
        return size if size[0] * size[1] < height * width else (height, width)

    def ends(self, height: int, width: int) -> tuple[int, int]:
        """How many rows go from the top as from the bottom, and columns from the left as from the right."""
        if len(self.size) == 2:
            return 0, 0
        longest = MAX_ASPECT * min(height, width)
        return max(0, (height - longest) // 2), max(0, (width - longest) // 2)

    def _resized(self, height: int, width: int) -> tuple[int, int]:
        if len(self.size) == 2:
            return self.size[0], self.size[1]
        shorter, longer = sorted((height, width))
        ends = int(self.size[0] * longer / shorter)  # as torchvision rounds it
        return (ends, self.size[0]) if height > width else (self.size[0], ends)


def resize_of(parameters: Mapping[str, str], *, fast: bool) -> Resize | None:
    """The resize that a preprocessor's parameters in config.pbtxt ask for.

    None where that is not known, or torch's, which cannot be done here.
    """
    library = parameters.get("resize_library", "")
    release = release_of(library)
    if library == PILLOW:
        major, minor = version("pillow").split(".")[:2]
        release = int(major), int(minor)
    interpolation = parameters.get("interpolation", "")
    size = sizes(parameters.get("resize_size", ""))
    if release is None or interpolation not in INTERPOLATIONS or len(size) not in {1, 2} or min(size) < 1:
        return None
    return Resize(size, interpolation, release, fast)


def sizes(text: str) -> tuple[int, ...]:
    """Lengths in pixels with commas between them; () for anything else, as somebody's own preprocessor may have it."""
    numbers = [number.strip() for number in text.split(",")]
    return tuple(map(int, numbers)) if all(number.isdecimal() for number in numbers) else ()
