"""Pillow's resize of uint8 RGB pictures, byte for byte, in a fraction of its time.

Nothing but buffers goes in and out: numpy arrays, or `memoryview(data).cast("B", (height, width, 3))`.
"""

from typing import TYPE_CHECKING

from exact_resize._kernel import instructions as _instructions
from exact_resize._kernel import resize as _resize

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

__all__ = ["FILTERS", "INSTRUCTIONS", "instructions", "resize"]

FILTERS = ("box", "bilinear", "hamming", "bicubic", "lanczos")
"""Those of PIL.Image.Resampling that are here, with antialiasing as there."""
INSTRUCTIONS: tuple[str, ...] = _instructions()
"""What this processor can resize with, the quickest first: of avx512, avx2 and portable."""


def instructions() -> str:
    """What this processor resizes with."""
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
    """Resize `source` to `size`, and write what `target` has room for, from `corner` on.

    `source` and `target` are uint8 [height, width, 3] whose rows may lie apart; `size` is height and width, `corner`
    top and left. Only the rows and columns of `target` are computed, and they are those of the whole. Other threads
    run meanwhile; none may write into either buffer. `by` is one of INSTRUCTIONS, for tests.

    `pillow` is the release, major and minor, whose bytes are wanted. All round between the two passes and differ in
    which is first, so a few pixels differ, by up to some twelve levels. Up to 12.1 the horizontal pass always is; in
    12.2 and 12.3 the vertical one where a picture more than 100 times as high as wide shrinks; since 13.0 where the
    height shrinks by more than twice as many pixels as the width.

    Raises ValueError for what is no picture, a part that is not inside, buffers that share memory, or instructions
    that this processor does not have; MemoryError.
    """
    _resize(source, target, *size, filter, *corner, *pillow, by)
