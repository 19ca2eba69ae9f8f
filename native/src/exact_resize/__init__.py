"""Pillow's resize of uint8 RGB images, byte for byte, in a sixth of its time.

Inputs and outputs are buffers: numpy arrays, or `memoryview(data).cast("B", (height, width, 3))`.
"""

from typing import TYPE_CHECKING

from exact_resize._kernel import instructions as _instructions
from exact_resize._kernel import resize as _resize

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

__all__ = ["FILTERS", "INSTRUCTIONS", "instructions", "resize"]

FILTERS = ("box", "bilinear", "hamming", "bicubic", "lanczos")
"""The supported filters of PIL.Image.Resampling, with antialiasing as in Pillow."""
INSTRUCTIONS: tuple[str, ...] = _instructions()
"""The instruction sets usable on this processor, fastest first: of avx512, avx2 and portable."""


def instructions() -> str:
    """The instruction set used on this processor."""
    return INSTRUCTIONS[0]


def resize(
    source: "ReadableBuffer",
    target: "WriteableBuffer",
    size: tuple[int, int],
    *,
    filter: str,  # noqa: A002  # the word of Pillow's users
    corner: tuple[int, int] = (0, 0),
    pillow: tuple[int, int] = (13, 0),
    by: str = "",
) -> None:
    """Resize `source` to `size`, and write the part of the result that begins at `corner` and has `target`'s size.

    `source` and `target` are uint8 [height, width, 3]; their rows need not be contiguous. `size` is height and width,
    `corner` top and left. Only the rows and columns of `target` are computed, with the same values as in the whole
    result. Other threads run meanwhile; they must not write into either buffer. `by` is one of INSTRUCTIONS, for tests.

    `pillow` is the Pillow release (major, minor) to match. All releases round between the two passes and differ in
    which pass is first, so a few pixels differ, by up to about twelve levels. The horizontal pass is first, except: in
    12.2 and 12.3, if the height of an image more than 100 times as high as wide shrinks; since 13.0, if the height
    shrinks by more than twice as many pixels as the width.

    Raises ValueError for invalid images, a part outside of the result, buffers that share memory, or instructions that
    this processor does not have; MemoryError.
    """
    _resize(source, target, *size, filter, *corner, *pillow, by)
