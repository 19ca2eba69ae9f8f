"""The accepted kinds of input, converted to one form: a name, and a function that reads the encoded bytes."""

import io
import os
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from gateway_client.files import DEFAULT_FILE_BYTES, read_file

Source = Any
"""A path, bytes of an image file, a PIL image, a NamedImage, or an RGB array uint8 [H, W], [H, W, 3] or [H, W, 4]."""

IMAGE_SUFFIXES = frozenset(
    f".{suffix}"
    for suffix in (
        *("avif", "bmp", "dib", "gif", "heic", "heif", "hif", "j2k", "jfif", "jp2"),
        *("jpe", "jpeg", "jpg", "png", "tif", "tiff", "webp"),
    )
)
"""Files in a folder or an archive with one of these suffixes are images; a file given by itself may have any."""


@dataclass(frozen=True, slots=True)
class NamedImage:
    """An image with a name; `read` returns its encoded bytes, may raise OSError, and is called in another thread."""

    name: str
    read: Callable[[], bytes] = field(repr=False)
    source: Source = field(default=None, repr=False)


def is_image_name(name: str) -> bool:
    """Whether a file in a folder or an archive has an image's suffix."""
    return os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES  # noqa: PTH122  # a name, not a path


def is_single_image(given: object) -> bool:
    """Whether the input is a single image rather than several."""
    return (
        isinstance(given, str | os.PathLike | bytes | bytearray | memoryview | NamedImage)
        or _is_pil(given)
        or _is_array(given)
        or hasattr(given, "read")  # an open file, which would be read as one image per line
    )


def image_of(given: Source, max_file_bytes: int = DEFAULT_FILE_BYTES) -> NamedImage:
    """Convert one input; raises TypeError for other types. At most `max_file_bytes` + 1 bytes of a file are read."""
    if isinstance(given, NamedImage):
        return given
    if isinstance(given, str | os.PathLike):
        return NamedImage(os.fspath(given), partial(read_file, Path(given), max_file_bytes), given)
    if isinstance(given, bytes | bytearray | memoryview):
        return NamedImage("", partial(bytes, given), given)
    if _is_pil(given):
        return _pil(given)
    if _is_array(given):
        return _array(given)
    raise TypeError(
        f"{type(given).__name__} is not an image: give a path, bytes (of a file: file.read()), a PIL image or an array "
        "uint8 [H, W, 3]"
    )


def images_of(given: Source | Iterable[Source], max_file_bytes: int) -> Iterator[NamedImage]:
    """Convert one input or several, lazily."""
    return (image_of(each, max_file_bytes) for each in ([given] if is_single_image(given) else given))


async def images_of_async(given: AsyncIterable[Source], max_file_bytes: int) -> AsyncIterator[NamedImage]:
    """Convert the items of an async iterable."""
    async for each in given:
        yield image_of(each, max_file_bytes)


def _is_pil(given: object) -> bool:
    return hasattr(given, "convert") and hasattr(given, "mode")


def _is_array(given: object) -> bool:
    return hasattr(given, "shape") and hasattr(given, "dtype") and hasattr(given, "tobytes")


def _array(array: Any) -> NamedImage:  # noqa: ANN401  # callers that pass an array have imported NumPy
    shape = tuple(array.shape)
    channels = 1 if len(shape) == 2 else shape[2] if len(shape) == 3 else 0
    if str(array.dtype) != "uint8" or channels not in (1, 3, 4) or 0 in shape:
        raise TypeError(
            f"an array must be uint8 [H, W], [H, W, 3] or [H, W, 4], in RGB; this one is {array.dtype} {list(shape)}"
        )
    try:
        from PIL import Image
    except ImportError as exc:
        raise TypeError("an array needs Pillow, which encodes it: pip install pillow") from exc
    image = Image.fromarray(array.reshape(shape[:2]) if channels == 1 else array)
    return NamedImage("", partial(_png, image), array)


def _pil(image: Any) -> NamedImage:  # noqa: ANN401  # as above
    if image.mode.startswith(("I", "F")):
        raise TypeError(f"a PIL image of mode {image.mode!r} does not have 8-bit colours; convert it first")
    # The pixels are sent as they are: the caller decides whether to apply the EXIF orientation.
    return NamedImage(str(getattr(image, "filename", "") or ""), lambda: _png(image.convert("RGB")), image)


def _png(image: Any) -> bytes:  # noqa: ANN401  # as above
    """Encode a PIL image as PNG."""
    data = io.BytesIO()
    # Without the EXIF orientation, which would turn the image again.
    image.save(data, "PNG", compress_level=1, exif=b"")
    return data.getvalue()
