"""Decompression piece by piece: memory is bounded by the size of a piece, whatever the ratio."""

import bz2
import lzma
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol

from gateway_client.files import PIECE_BYTES

FREE_BYTES = 2**30
MAX_RATIO = 100
"""An archive may inflate to FREE_BYTES plus MAX_RATIO times its own size."""
MAX_DICTIONARY_BYTES = 256 * 2**20
"""Maximum memory for LZMA; `xz -9` needs 65 MiB."""
_LZMA_HEADER = struct.Struct("<2sHBI")

_STREAMS = (
    (b"\x1f\x8b", lambda: Deflate(zlib.MAX_WBITS | 16)),
    (b"BZh", bz2.BZ2Decompressor),
    (b"\xfd7zXZ\0", partial(lzma.LZMADecompressor, lzma.FORMAT_XZ, memlimit=MAX_DICTIONARY_BYTES)),
    (b"]\0\0", partial(lzma.LZMADecompressor, lzma.FORMAT_ALONE, memlimit=MAX_DICTIONARY_BYTES)),
)
"""Signatures of compressed streams, and their decompressors."""


class Inflater(Protocol):
    """The interface of bz2.BZ2Decompressor and lzma.LZMADecompressor."""

    @property
    def eof(self) -> bool:
        """Whether the stream has ended."""

    @property
    def needs_input(self) -> bool:
        """Whether `decompress` needs further data to return anything."""

    @property
    def unused_data(self) -> bytes:
        """Data after the end of the stream."""

    def decompress(self, data: bytes, max_length: int) -> bytes:
        """Decompress at most `max_length` bytes."""


class InflatesTooFar(ValueError):
    """An archive inflates to more than its size allows."""


class InflationBudget:
    """Limits the total bytes that one archive may inflate to; threads share it."""

    def __init__(self, archive_bytes: int) -> None:
        self._left = FREE_BYTES + MAX_RATIO * archive_bytes
        self._lock = threading.Lock()

    def charge(self, nbytes: int) -> None:
        """Count bytes; raises InflatesTooFar beyond the limit."""
        with self._lock:
            self._left -= nbytes
            if self._left < 0:
                raise InflatesTooFar(
                    f"the archive inflates to more than {FREE_BYTES >> 30} GiB and {MAX_RATIO} times its size"
                )


class Deflate:
    """zlib's decompressor with the interface `Inflater`."""

    def __init__(self, wbits: int) -> None:
        self._inflate = zlib.decompressobj(wbits)
        self.needs_input = True

    @property
    def eof(self) -> bool:
        """Whether the stream has ended."""
        return self._inflate.eof

    @property
    def unused_data(self) -> bytes:
        """Data after the end of the stream."""
        return self._inflate.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        """Decompress at most `max_length` bytes, and set `needs_input`."""
        piece = self._inflate.decompress(self._inflate.unconsumed_tail + data, max_length)
        self.needs_input = not self._inflate.unconsumed_tail and len(piece) < max_length
        return piece


def inflater_of(beginning: bytes) -> Callable[[], Inflater] | None:
    """The decompressor for a file with this beginning; None if it is not compressed."""
    return next((new for signature, new in _STREAMS if beginning.startswith(signature)), None)


def lzma_of_zip(header: bytes) -> Inflater:
    """The decompressor of a zip's LZMA member (APPNOTE 5.8.8), by its first LZMA_HEADER_BYTES; raises ValueError."""
    _, size, packed, dictionary = _LZMA_HEADER.unpack(header)
    if size != 5 or packed >= 9 * 5 * 5 or dictionary > MAX_DICTIONARY_BYTES:
        raise ValueError("its LZMA header is damaged, or asks for too much memory")
    filters = [
        {
            "id": lzma.FILTER_LZMA1,
            "lc": packed % 9,
            "lp": packed // 9 % 5,
            "pb": packed // 45,
            "dict_size": dictionary,
        }
    ]
    return lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=filters)


LZMA_HEADER_BYTES = _LZMA_HEADER.size


def inflated(chunks: Iterator[bytes], new: Callable[[], Inflater]) -> Iterator[bytes]:
    """Decompress chunks of one or more concatenated streams; raises EOFError if a stream is truncated."""
    inflater = new()
    while True:
        data = b""
        if inflater.eof:
            data = inflater.unused_data.lstrip(b"\0")  # tapes and xz pad with zeros
            while not data:
                if not (chunk := next(chunks, b"")):
                    return
                data = chunk.lstrip(b"\0")
            inflater = new()
        elif inflater.needs_input and not (data := next(chunks, b"")):
            raise EOFError("it ends too early")
        if piece := inflater.decompress(data, PIECE_BYTES):
            yield piece
