"""The client for programs without an event loop, and for notebooks, which already run one."""

import asyncio
import queue
import threading
from collections.abc import AsyncGenerator, Coroutine, Generator, Iterable
from types import AsyncGeneratorType, TracebackType
from typing import Any, TypeVar, Unpack

from gateway_client.asynchronous import AsyncGateway, ClassifyOptions, EmbedOptions, Options
from gateway_client.batches import ServiceLimits
from gateway_client.images import Source
from gateway_client.results import Model, Result
from gateway_client.sending import SendOptions

T = TypeVar("T")

INTERRUPTED_SECONDS = 5.0
"""Time that cancelled requests have to end after Ctrl-C."""
SIGNAL_SECONDS = 0.5
"""How often a wait looks for a signal. A lock does not notice one that arrives just before it begins to wait; and the
locks of `threading` and `concurrent.futures`, in Python code, may stay taken if a signal interrupts them."""


class Gateway:
    """The blocking form of AsyncGateway; use it as a context manager, or call `close`.

    It takes the same arguments. An event loop in a separate thread sends images while the caller handles results.
    """

    def __init__(
        self, url: str = "http://127.0.0.1:8080", api_key: str | None = None, **options: Unpack[Options]
    ) -> None:
        self._gateway = AsyncGateway(url, api_key, **options)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="gateway-client", daemon=True)
        self._thread.start()

    def __enter__(self) -> "Gateway":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections and end the thread."""
        if self._loop.is_closed():
            return
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        """Cancel requests that are still running, as after an early `break`, then close the connections."""
        running = asyncio.all_tasks() - {asyncio.current_task()}
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await self._loop.shutdown_asyncgens()
        await self._gateway.aclose()

    def classify(
        self, images: Source | Iterable[Source], **options: Unpack[ClassifyOptions]
    ) -> Generator[Result, None, None]:
        """Yield one result for each image, as it is ready; see AsyncGateway.classify.

        `on_wait` is called from the client's thread; an iterator of images is read in another thread.
        """
        yield from self._each(images, self._gateway._send_options("predict", **options))

    def embed(
        self, images: Source | Iterable[Source], **options: Unpack[EmbedOptions]
    ) -> Generator[Result, None, None]:
        """Yield one result for each image, with its embedding; see AsyncGateway.embed."""
        yield from self._each(images, self._gateway._send_options("embed", **options))

    def limits(self) -> ServiceLimits:
        """The service's limits for one request; fetched once."""
        return self._run(self._gateway.limits())

    def version_in_use(self, model: str | None = None) -> str:
        """The version that answers for a model, or for the default one; raises RequestError `model_not_found`."""
        return self._run(self._gateway.version_in_use(model))

    def models(self) -> list[Model]:
        """The models of the service."""
        return self._run(self._gateway.models())

    def _each(self, images: Source | Iterable[Source], options: SendOptions) -> Generator[Result, None, None]:
        lists = self._gateway._lists(images, options)
        try:
            while ready := self._run(_next(lists)):
                yield from ready
        finally:
            if not self._loop.is_closed():  # else `close` has ended them
                self._run(_close(lists))

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine that runs in the thread; Ctrl-C cancels it."""
        ended: queue.SimpleQueue[asyncio.Task[T] | None] = queue.SimpleQueue()
        started: list[asyncio.Task[T]] = []

        def start() -> None:
            task = self._loop.create_task(coroutine)
            task.add_done_callback(ended.put)
            started.append(task)

        def stop() -> None:
            if started:
                started[0].cancel()
            else:  # Ctrl-C came before `start` was in the loop's queue
                coroutine.close()
                ended.put(None)

        try:
            self._loop.call_soon_threadsafe(start)
            while (task := _wait(ended, SIGNAL_SECONDS)) is None:
                pass
        except BaseException:  # Ctrl-C interrupts the wait, but not the coroutine
            self._loop.call_soon_threadsafe(stop)
            _wait(ended, INTERRUPTED_SECONDS)
            raise
        return task.result()


def _wait(items: "queue.SimpleQueue[T]", seconds: float) -> T | None:
    """The next item, or None after some seconds."""
    try:
        return items.get(timeout=seconds)
    except queue.Empty:
        return None


async def _close(lists: AsyncGenerator[list[Result], None]) -> None:
    """Close the generator, unless it is running: after a second Ctrl-C it may be closing already."""
    if not (isinstance(lists, AsyncGeneratorType) and lists.ag_running):
        await lists.aclose()


async def _next(lists: AsyncGenerator[list[Result], None]) -> list[Result]:
    """The next results; [] when there are no more."""
    return await anext(lists, [])
