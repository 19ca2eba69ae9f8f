"""Messages from the service to its writer: a row as JSON, with the embedding and the image as bytes.

kind uint8, length of the JSON, the embedding and the image uint32 each, little-endian; then the three
"""

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

_HEAD = struct.Struct("<BIII")


class RowKind(IntEnum):
    """The kind of a row."""

    PREDICTION = 1
    FEEDBACK = 2


@dataclass(frozen=True, slots=True)
class WriterOptions:
    """What the writer has to know of the settings."""

    url: str
    keep_days: int
    keep_bytes: int
    file_rows: int
    file_bytes: int
    file_seconds: float


@dataclass(frozen=True, slots=True)
class LogMessage:
    """One row. `embedding` is fp32, little-endian; `image` is the uploaded file, if images are stored."""

    kind: RowKind
    row: dict[str, Any]
    embedding: bytes = field(default=b"", repr=False)
    image: bytes = field(default=b"", repr=False)
    nbytes: int = 0


def encode(kind: RowKind, row: bytes, embedding: bytes = b"", image: bytes = b"") -> list[bytes]:
    """The pieces of a message; `row` is JSON."""
    return [_HEAD.pack(kind, len(row), len(embedding), len(image)), row, embedding, image]


class FrameReader:
    """Splits the received bytes into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[LogMessage]:
        """Yield the messages that `data` completes."""
        self._buffer += data
        begin = 0
        while len(self._buffer) - begin >= _HEAD.size:
            kind, row, embedding, image = _HEAD.unpack_from(self._buffer, begin)
            at = begin + _HEAD.size
            end = at + row + embedding + image
            if len(self._buffer) < end:
                break
            yield LogMessage(
                RowKind(kind),
                json.loads(self._buffer[at : at + row]),
                bytes(self._buffer[at + row : end - image]),
                bytes(self._buffer[end - image : end]),
                end - begin,
            )
            begin = end
        del self._buffer[:begin]
