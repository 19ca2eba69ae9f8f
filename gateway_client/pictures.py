"""What can be classified, brought to one form: a name, and a way to get the encoded bytes."""

import os
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Sized
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from gateway_client import png_writer
from gateway_client.files import DEFAULT_FILE_BYTES, read_file

Source = Any
"""A path, bytes of an image file, a PIL image, an array uint8 [H, W], [H, W, 3] or [H, W, 4] in RGB, or a Picture."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture by name; `read` gives its encoded bytes in its turn, in some thread, and may raise OSError."""

    name: str
    read: Callable[[], bytes] = field(repr=False)
    source: Source = field(default=None, repr=False)


def is_one(given: object) -> bool:
    """Whether this is one picture, not several."""
    return (
        isinstance(given, str | os.PathLike | bytes | bytearray | memoryview | Picture)
        or _is_pil(given)
        or _is_array(given)
    )


def picture_of(given: Source, max_file_bytes: int = DEFAULT_FILE_BYTES) -> Picture:
    """One picture in the one form; raises TypeError where it is none. A file is read up to a limit and one byte."""
    if isinstance(given, Picture):
        return given
    if isinstance(given, str | os.PathLike):
        return Picture(os.fspath(given), partial(read_file, Path(given), max_file_bytes), given)
    if isinstance(given, bytes | bytearray | memoryview):
        return Picture("", partial(bytes, given), given)
    if _is_pil(given):
        return _pil(given, given)
    if _is_array(given):
        return _array(given, given)
    raise TypeError(
        f"{type(given).__name__} is not a picture: give a path, bytes, a PIL image or an array uint8 [H, W, 3]"
    )


def pictures_of(given: Source | Iterable[Source], max_file_bytes: int) -> Iterator[Picture]:
    """One picture or several, each in the one form as it is asked for."""
    return (picture_of(each, max_file_bytes) for each in ([given] if is_one(given) else given))


async def pictures_of_async(given: AsyncIterable[Source], max_file_bytes: int) -> AsyncIterator[Picture]:
    """Pictures that come in their own time."""
    async for each in given:
        yield picture_of(each, max_file_bytes)


def number_of(given: object) -> int | None:
    """How many there are, if that is known beforehand."""
    if is_one(given):
        return 1
    return len(given) if isinstance(given, Sized) else None


# Neither Pillow nor NumPy is imported: who has their objects has them.
class _Array(Protocol):
    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> object: ...

    def tobytes(self) -> bytes: ...


class _PilImage(Protocol):
    @property
    def mode(self) -> str: ...

    @property
    def size(self) -> tuple[int, int]: ...

    def convert(self, mode: str) -> "_PilImage": ...

    def tobytes(self) -> bytes: ...


def _is_pil(given: object) -> bool:
    return hasattr(given, "convert") and hasattr(given, "mode")


def _is_array(given: object) -> bool:
    return hasattr(given, "shape") and hasattr(given, "dtype") and hasattr(given, "tobytes")


def _array(array: _Array, given: Source) -> Picture:
    shape = tuple(array.shape)
    channels = 1 if len(shape) == 2 else shape[2] if len(shape) == 3 else 0
    if str(array.dtype) != "uint8" or channels not in (1, 3, 4) or 0 in shape:
        raise TypeError(
            f"an array must be uint8 [H, W], [H, W, 3] or [H, W, 4], in RGB; this one is {array.dtype} {list(shape)}"
        )
    return Picture("", lambda: png_writer.encode(array.tobytes(), shape[1], shape[0], channels), given)


def _pil(image: _PilImage, given: Source) -> Picture:
    if image.mode.startswith(("I", "F")):
        raise TypeError(f"a PIL image of mode {image.mode!r} has no colours of 8 bits; convert it first")
    # The pixels as they are: whoever opened the file has decided whether to turn it upright.
    return Picture(
        str(getattr(image, "filename", "") or ""),
        lambda: png_writer.encode(image.convert("RGB").tobytes(), image.size[0], image.size[1], 3),
        given,
    )
