"""Pictures cut into requests: read ahead a little, bounded by number and by bytes."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

from gateway_client.errors import FileTooLarge, GatewayError
from gateway_client.faults import UnreadableFile
from gateway_client.files import DEFAULT_FILE_BYTES
from gateway_client.pictures import Picture
from gateway_client.readers import Readers

READERS = 8
"""Pictures that are read at once: from a bucket one by one would take most of the time."""
LONGEST_GATHERING_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class ServiceLimits:
    """What one request may bring."""

    max_files: int = 1000
    max_file_bytes: int = DEFAULT_FILE_BYTES
    max_request_bytes: int = 2 * 2**30


@dataclass(slots=True)
class Loaded:
    """A picture with its bytes; with `error` set it has none and is not sent."""

    index: int
    picture: Picture
    data: bytes = field(repr=False)
    error: GatewayError | None = None


class Batches:
    """Takes pictures from an iterator, from one task at a time, and reads them in threads."""

    def __init__(
        self,
        pictures: Iterator[Picture] | AsyncIterator[Picture],
        limits: ServiceLimits,
        *,
        most_images: int,
        most_bytes: int,
    ) -> None:
        self._pictures = pictures
        self._limits = limits
        self._most_images = max(1, min(most_images, limits.max_files))
        # Headers of the parts are counted in the request's bytes, too.
        self._most_bytes = max(1, min(most_bytes, limits.max_request_bytes - 1024 * self._most_images))
        self._loaded: deque[Loaded] = deque()
        self._taken = 0
        self._ended = False
        self._readers = Readers(READERS, "gateway-client-read")

    def close(self) -> None:
        """Let go of the readers."""
        self._readers.shutdown()

    async def take(self) -> list[Loaded]:
        """The next pictures for one request, and those that cannot be sent; [] when there are no more."""
        started = time.monotonic()
        batch: list[Loaded] = []
        nbytes = 0
        while len(batch) < self._most_images:
            if not self._loaded:
                if self._ended or (batch and time.monotonic() - started > LONGEST_GATHERING_SECONDS):
                    break
                await self._load(self._most_images - len(batch))
                continue
            size = len(self._loaded[0].data)
            if nbytes and nbytes + size > self._most_bytes:
                break
            nbytes += size
            batch.append(self._loaded.popleft())
        return batch

    async def _load(self, wanted: int) -> None:
        loop = asyncio.get_running_loop()
        pictures = []
        for _ in range(min(READERS, wanted)):
            picture = await self._next(loop)
            if picture is None:
                self._ended = True
                break
            pictures.append((self._taken, picture))
            self._taken += 1
        self._loaded.extend(
            await asyncio.gather(*(loop.run_in_executor(self._readers, self._read, *each) for each in pictures))
        )

    async def _next(self, loop: asyncio.AbstractEventLoop) -> Picture | None:
        if isinstance(self._pictures, AsyncIterator):
            return await anext(self._pictures, None)
        # In a thread, since a list of names may come from a disk, a pipe or a bucket.
        return await loop.run_in_executor(self._readers, next, self._pictures, None)

    def _read(self, index: int, picture: Picture) -> Loaded:
        try:
            data = picture.read()
        except (OSError, MemoryError) as exc:
            reason = (exc.strerror if isinstance(exc, OSError) else "there is too little memory") or str(exc)
            return Loaded(index, picture, b"", UnreadableFile(f"The file cannot be read: {reason}."))
        if len(data) > self._limits.max_file_bytes:
            value = self._limits.max_file_bytes
            error = FileTooLarge(
                f"The file has more than {_amount(value)}.", details={"limit": "max_file_bytes", "value": value}
            )
            return Loaded(index, picture, b"", error)
        return Loaded(index, picture, data)


def _amount(nbytes: int) -> str:
    """A number of bytes as the gateway tells it: its own `amount`, since nothing of it is imported here."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if nbytes >= size and nbytes % size == 0:
            return f"{nbytes // size} {unit}"
    return f"{nbytes} bytes"
