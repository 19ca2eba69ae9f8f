"""Batches of images, one per request: read ahead, and bounded in number and bytes."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeVar

from gateway_client.errors import GatewayError, ImageError
from gateway_client.files import DEFAULT_FILE_BYTES
from gateway_client.images import NamedImage

T = TypeVar("T")

READERS = 8
"""Number of images that are read concurrently: reading a bucket one by one would take most of the time."""
LONGEST_GATHERING_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class ServiceLimits:
    """The service's limits for one request."""

    max_files: int = 1000
    max_file_bytes: int = DEFAULT_FILE_BYTES
    max_request_bytes: int = 2 * 2**30


@dataclass(slots=True)
class Loaded:
    """An image with its bytes; if `error` is set, it has no bytes and is not sent."""

    index: int
    image: NamedImage
    data: bytes = field(repr=False)
    error: GatewayError | None = None


class Batches:
    """Takes images from an iterator and reads them in threads; only one task may call `take`."""

    def __init__(
        self,
        images: Iterator[NamedImage] | AsyncIterator[NamedImage],
        limits: ServiceLimits,
        *,
        most_images: int,
        most_bytes: int,
    ) -> None:
        self._images = images
        self._limits = limits
        self._most_images = max(1, min(most_images, limits.max_files))
        # The headers of the parts count towards the request's bytes.
        self._most_bytes = max(1, min(most_bytes, limits.max_request_bytes - 1024 * self._most_images))
        self._loaded: deque[Loaded] = deque()
        self._taken = 0
        self._ended = False

    async def take(self) -> list[Loaded]:
        """Return the next images for one request, including images that cannot be sent; [] at the end."""
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
        most = min(READERS, wanted)
        if isinstance(self._images, AsyncIterator):
            images = [image async for image in _first(self._images, most)]
        else:  # in a thread: the iterator may read names from a disk, a pipe or a bucket
            images = await _in_thread(list, islice(self._images, most))
        self._ended = len(images) < most
        reads = (_in_thread(self._read, index, image) for index, image in enumerate(images, self._taken))
        self._taken += len(images)
        self._loaded.extend(await asyncio.gather(*reads))

    def _read(self, index: int, image: NamedImage) -> Loaded:
        try:
            data = image.read()
        except (OSError, MemoryError) as exc:
            reason = (exc.strerror if isinstance(exc, OSError) else "there is too little memory") or str(exc)
            return Loaded(index, image, b"", ImageError(f"The file cannot be read: {reason}.", code="unreadable_file"))
        if len(data) > self._limits.max_file_bytes:
            value = self._limits.max_file_bytes
            error = ImageError(
                f"The file has more than {value:,} bytes: scale the image down.",
                code="file_too_large",
                details={"limit": "max_file_bytes", "value": value},
            )
            return Loaded(index, image, b"", error)
        return Loaded(index, image, data)


async def _first(images: AsyncIterator[NamedImage], most: int) -> AsyncIterator[NamedImage]:
    for _ in range(most):
        if (image := await anext(images, None)) is None:
            return
        yield image


def _in_thread(work: Callable[..., T], *arguments: object) -> "asyncio.Future[T]":
    """Call a function in a daemon thread, so that the program may end while a read has not returned."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()  # so that the caller's cancellation does not cancel it

    def run() -> None:
        try:
            future.set_result(work(*arguments))
        except BaseException as exc:  # raised where the future is awaited
            future.set_exception(exc)

    threading.Thread(target=run, name="gateway-client-read", daemon=True).start()
    return asyncio.wrap_future(future)
