"""The client for programs without an event loop, and for notebooks, whose event loop is not theirs."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Coroutine, Generator, Iterable, Sequence
from types import AsyncGeneratorType, TracebackType
from typing import Any, TypeVar, Unpack

from gateway_client.asynchronous import AsyncGateway, OnProgress, Options
from gateway_client.batches import ServiceLimits
from gateway_client.pictures import Source
from gateway_client.results import Model, Result
from gateway_client.sending import Asked, OnWait

T = TypeVar("T")

INTERRUPTED_SECONDS = 5.0
"""What Ctrl-C cancels has this long to end."""


class Gateway:
    """What AsyncGateway is, for blocking code; use it as a context manager, or call `close`.

    It takes the same arguments. An event loop in a thread of its own goes on sending while results are looked at.
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
        """Whoever stops in the middle of the results leaves requests on their way: they end first."""
        running = asyncio.all_tasks() - {asyncio.current_task()}
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await self._loop.shutdown_asyncgens()
        await self._gateway.aclose()

    def classify(
        self,
        images: Source | Iterable[Source],
        *,
        model: str | None = None,
        version: str | int | None = None,
        top_k: int | None = None,
        threshold: float | None = None,
        labels: Sequence[str] = (),
        timeout: float | None = None,
        frames: int | str | None = None,
        progress: OnProgress | None = None,
        on_wait: OnWait | None = None,
    ) -> Generator[Result, None, None]:
        """Yield one result for each picture, as it is ready; see AsyncGateway.classify.

        `progress` and `on_wait` are called from the client's thread, and an iterator of images is asked in another.
        """
        asked = self._gateway._asked(model, version, top_k, threshold, labels, timeout, frames, on_wait)
        yield from self._each(images, asked, progress)

    def embed(
        self,
        images: Source | Iterable[Source],
        *,
        model: str | None = None,
        version: str | int | None = None,
        normalize: bool = False,
        top_k: int | None = None,
        timeout: float | None = None,
        progress: OnProgress | None = None,
        on_wait: OnWait | None = None,
    ) -> Generator[Result, None, None]:
        """Yield one result for each picture, with its vector; see AsyncGateway.embed."""
        asked = self._gateway._asked_vectors(model, version, top_k, timeout, on_wait, normalize=normalize)
        yield from self._each(images, asked, progress)

    def limits(self) -> ServiceLimits:
        """What one request may bring; asked for once."""
        return self._run(self._gateway.limits())

    def models(self) -> list[Model]:
        """What can be asked."""
        return self._run(self._gateway.models())

    def _each(
        self, images: Source | Iterable[Source], asked: Asked, progress: OnProgress | None
    ) -> Generator[Result, None, None]:
        lists = self._gateway._lists(images, asked, progress)
        try:
            while ready := self._run(_next(lists)):
                yield from ready
        finally:
            if not self._loop.is_closed():  # else `close` has ended them
                self._run(_close(lists))

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        ended = threading.Event()

        async def run() -> T:
            try:
                return await coroutine
            finally:
                ended.set()

        future = asyncio.run_coroutine_threadsafe(run(), self._loop)
        try:
            return future.result()
        except BaseException:
            if not future.done():  # Ctrl-C has interrupted the wait, and not what is waited for
                future.cancel()
                _wait(ended, INTERRUPTED_SECONDS)
            raise


def _wait(ended: threading.Event, seconds: float) -> None:
    ended.wait(seconds)


async def _close(lists: AsyncGenerator[list[Result], None]) -> None:
    """End what is on its way; after a second Ctrl-C it may be ending already, and cannot be asked to."""
    if not (isinstance(lists, AsyncGeneratorType) and lists.ag_running):
        await lists.aclose()


async def _next(lists: AsyncGenerator[list[Result], None]) -> list[Result]:
    """The next results; [] when there are no more."""
    return await anext(lists, [])
