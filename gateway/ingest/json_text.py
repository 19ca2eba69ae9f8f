"""All JSON that clients send (RFC 8259): request bodies with their images in base64, and messages of streams.

pydantic_core decodes it. It refuses lone surrogates, NaN and Infinity, control characters in strings, and more than 200
levels; of two members with one name the last one counts.
"""

import binascii
import math
from collections.abc import AsyncIterable

from pydantic_core import from_json

from gateway.errors import ImageError, InvalidBody, InvalidImage, RequestTooLarge
from gateway.ingest.upload import Hold, UploadLimits
from gateway.timing import TimeSlice
from gateway.values.quantities import size

MAX_JSON_BYTES = 32 * 2**20
"""A body beyond this is refused: decoding it blocks the event loop. Larger requests can be sent as forms."""
MAX_VALUES = 100_000
"""Values of one text: an empty object takes thirty times its bytes."""
MAX_TEXT_CHARACTERS = 8 * 1024
"""Longest file name or URL."""
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_WHITESPACE = b" \t\r\n"
_URL_SAFE = bytes.maketrans(b"-_", b"+/")
_PIECE_BYTES = 2**20
"""Base64 that is decoded between two readings of the clock; a multiple of four."""


class JsonError(ValueError):
    """The text is not JSON, or is JSON that is not accepted; the message states the reason, for the client."""


def invalid(reason: str) -> InvalidBody:
    """The error of a body that is not JSON, or not the expected JSON."""
    return InvalidBody(f"The JSON body is invalid: {reason}.")


def decode(text: str | bytes | bytearray, *, max_bytes: int) -> object:
    """Decode a text of at most `max_bytes` bytes (characters for a `str`); raises JsonError.

    A byte order mark is ignored, as .NET and PowerShell send one.
    """
    if len(text) > max_bytes:
        raise JsonError(f"it has more than {f'{max_bytes:,} characters' if isinstance(text, str) else size(max_bytes)}")
    try:
        data = text.encode() if isinstance(text, str) else text
        if data.startswith(_BYTE_ORDER_MARK):
            data = data[len(_BYTE_ORDER_MARK) :]
        many = sum(map(data.count, (b",", b"[", b"{"))) > MAX_VALUES
        value: object = None if many else from_json(data, allow_inf_nan=False)
    except UnicodeError:
        raise JsonError("it is not UTF-8") from None
    except ValueError as exc:
        try:
            data.decode()  # the parser does not tell what is damaged from what has another encoding
        except UnicodeError:
            raise JsonError("it is not UTF-8") from None
        raise JsonError(str(exc)) from None
    if many:
        raise JsonError(f"it has more than {MAX_VALUES:,} values")
    _check_numbers(value)
    return value


def _check_numbers(value: object) -> None:
    """Raise JsonError for a number without a finite value, such as 1e999."""
    left = [value]
    while left:
        each = left.pop()
        if isinstance(each, dict):
            left += each.values()
        elif isinstance(each, list):
            left += each
        elif isinstance(each, float) and not math.isfinite(each):
            raise JsonError("a number is out of range")


async def read_json(chunks: AsyncIterable[bytes], limits: UploadLimits, hold: Hold) -> object:
    """Decode a whole body, whose bytes are counted by `hold`; raises InvalidBody or RequestTooLarge."""
    body = bytearray()
    async for chunk in chunks:
        body += chunk
        if len(body) > limits.max_request_bytes:
            raise limits.request_too_large()
        if len(body) > MAX_JSON_BYTES:
            most = size(MAX_JSON_BYTES)
            raise RequestTooLarge(f"A JSON body may have at most {most}: send the images as multipart/form-data.")
        hold(len(body))
    # The strings are as long as the text, or four times if a character of it is beyond the 16-bit plane.
    hold((2 if body.isascii() and b"\\u" not in body else 5) * len(body))
    try:
        return decode(body, max_bytes=MAX_JSON_BYTES)
    except JsonError as exc:
        raise invalid(str(exc)) from None


def short_text(value: object, name: str) -> str:
    """A file name or URL; raises InvalidBody."""
    if not isinstance(value, str):
        raise invalid(f"{name} must be a string")
    if len(value) > MAX_TEXT_CHARACTERS:
        raise invalid(f"{name} has more than {MAX_TEXT_CHARACTERS:,} characters")
    return value


async def read_base64(text: str, limits: UploadLimits, hold: Hold, left_bytes: int) -> tuple[bytes, ImageError | None]:
    """Decode an image in base64 (RFC 4648): its bytes, or b"" and what is wrong with it.

    Takes both alphabets, line breaks, missing padding and a leading `data:…;base64,`. Calls `hold` with the bytes of
    the image plus `left_bytes`.
    """
    hold(left_bytes + 3 * len(text))
    prefix, comma, digits = text.partition(",") if text.startswith("data:") else (";base64", ",", text)
    cleaned = digits.encode(errors="replace").translate(_URL_SAFE, _WHITESPACE)
    padding = len(cleaned) - len(cleaned.rstrip(b"="))
    count = len(cleaned) - padding
    missing = -count % 4
    if 3 * count // 4 > limits.max_file_bytes:
        return b"", limits.file_too_large()
    if not (prefix.endswith(";base64") and comma) or missing == 3 or padding not in (0, missing):
        return b"", InvalidImage("The image is not base64.")
    view, pieces, time_slice = memoryview(cleaned)[:count], [], TimeSlice()
    try:
        for start in range(0, count, _PIECE_BYTES):
            piece = view[start : start + _PIECE_BYTES]
            pieces.append(binascii.a2b_base64(bytes(piece) + b"=" * (-len(piece) % 4), strict_mode=True))
            await time_slice.pause_if_over()
    except binascii.Error:
        return b"", InvalidImage("The image is not base64.")
    data = b"".join(pieces)
    hold(left_bytes + len(data))
    return data, None
