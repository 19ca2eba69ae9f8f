"""Helpers for the tests of readers: limits, bodies in chunks, and an encoder of forms that follows the RFCs alone."""

import asyncio
import tracemalloc
from collections.abc import AsyncIterable, AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

from gateway.ingest.upload import UploadLimits
from gateway.settings import DecodeMode
from tests.settings import Settings

T = TypeVar("T")

LIMITS = UploadLimits.from_settings(Settings(_env_file=None))
AUTO, ALWAYS, NEVER = (replace(LIMITS, decode=mode) for mode in DecodeMode)
BOUNDARY = "----a boundary of 1 to 70"
CONTENT_TYPE = f'multipart/form-data; boundary="{BOUNDARY}"'


def limits(**changed: int) -> UploadLimits:
    """The default limits, with some changed."""
    return replace(LIMITS, **changed)


@contextmanager
def allocates_at_most(nbytes: float) -> Iterator[None]:
    """Fail if Python holds more than `nbytes` of new memory at any moment of the block."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < nbytes
    finally:
        tracemalloc.stop()


async def in_chunks(body: bytes, sizes: Sequence[int] = (65_536,)) -> AsyncIterator[bytes]:
    """Yield a body as a socket may: in chunks of these sizes, repeated in order."""
    position = number = 0
    while position < len(body):
        size = sizes[number % len(sizes)]
        yield body[position : position + size]
        position, number = position + size, number + 1


def collect(stream: AsyncIterable[T]) -> list[T]:
    """All items of a stream."""
    return collect_until_error(stream, ())[0]


def collect_until_error(
    stream: AsyncIterable[T], errors: type[Exception] | tuple[type[Exception], ...]
) -> tuple[list[T], Exception | None]:
    """The items before the first of these errors, and that error; None if there is none."""

    async def read() -> tuple[list[T], Exception | None]:
        items: list[T] = []
        try:
            async for item in stream:
                items.append(item)
        except errors as error:
            return items, error
        return items, None

    return asyncio.run(read())


@dataclass(frozen=True)
class Part:
    """A part of a form: a file if it has a filename."""

    name: str
    data: bytes
    filename: str | None = None
    content_type: str | None = None

    def encode(self) -> bytes:
        """Encode it like a browser (WHATWG HTML, multipart/form-data encoding algorithm)."""
        disposition = f'form-data; name="{_escape(self.name)}"'
        if self.filename is not None:
            disposition += f'; filename="{_escape(self.filename)}"'
        lines = [f"Content-Disposition: {disposition}"]
        if self.content_type is not None:
            lines.append(f"Content-Type: {self.content_type}")
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + self.data


def _escape(text: str) -> str:
    return text.replace("\n", "%0A").replace("\r", "%0D").replace('"', "%22")


def form(*parts: Part | bytes, boundary: str = BOUNDARY, closed: bool = True) -> bytes:
    """A multipart body (RFC 2046 section 5.1.1) of parts, or of their bytes after the boundary's line."""
    delimiter = b"--" + boundary.encode()
    encoded = [part.encode() if isinstance(part, Part) else part for part in parts]
    body = b"".join(delimiter + b"\r\n" + part + b"\r\n" for part in encoded)
    return body + (delimiter + b"--\r\n" if closed else b"")
