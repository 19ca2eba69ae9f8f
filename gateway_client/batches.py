"""Batches of images, one per request: read ahead, and bounded in number and bytes."""

import asyncio
import queue
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

from gateway_client.errors import GatewayError, ImageError
from gateway_client.files import DEFAULT_FILE_BYTES
from gateway_client.images import NamedImage

T = TypeVar("T")
P = ParamSpec("P")

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
        self._readers = _Readers(READERS, "gateway-client-read")

    def close(self) -> None:
        """Stop the reader threads."""
        self._readers.shutdown()

    async def take(self) -> list[Loaded]:
        """Return the next images for one request, with those that cannot be sent; [] at the end."""
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
        images = []
        for _ in range(min(READERS, wanted)):
            image = await self._next(loop)
            if image is None:
                self._ended = True
                break
            images.append((self._taken, image))
            self._taken += 1
        self._loaded.extend(
            await asyncio.gather(*(loop.run_in_executor(self._readers, self._read, *each) for each in images))
        )

    async def _next(self, loop: asyncio.AbstractEventLoop) -> NamedImage | None:
        if isinstance(self._images, AsyncIterator):
            return await anext(self._images, None)
        # In a thread: the iterator may read names from a disk, a pipe or a bucket.
        return await loop.run_in_executor(self._readers, next, self._images, None)

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


class _Readers(Executor):
    """A ThreadPoolExecutor of daemon threads: the program may end while a read has not returned."""

    def __init__(self, max_threads: int, name: str) -> None:
        self._max_threads = max_threads
        self._name = name
        self._threads = 0
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._pending: set[Future[object]] = set()

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Schedule a call in one of the threads."""
        future: Future[T] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = function(*args, **kwargs)
            except BaseException as exc:  # raised by `future.result()`
                future.set_exception(exc)
            else:
                future.set_result(result)

        self._pending.add(future)  # type: ignore[arg-type]
        future.add_done_callback(self._pending.discard)
        self._work.put(work)
        if self._threads < self._max_threads:
            self._threads += 1
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
        return future

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = True) -> None:  # noqa: ARG002, FBT001, FBT002
        """Stop each thread after its current call; calls that have not begun are cancelled."""
        if cancel_futures:
            for future in list(self._pending):
                future.cancel()
        for _ in range(self._threads):
            self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            del work
