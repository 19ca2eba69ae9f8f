"""The results of a request whose caller iterates over them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Self

from gateway.inference.result import Result
from gateway.inference.scope import Scope
from gateway.ingest.media_types import Uploads

MAX_UNREAD_PREDICTIONS = 10_000
"""Unread predictions above which a request stops reading uploads."""


class ReadyResults:
    """A queue with backpressure: a client may keep sending without reading its results."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[tuple[Result | None, int]] = asyncio.Queue()
        """The results with their sizes in predictions."""
        self._predictions = 0
        self._taken = asyncio.Event()
        self._failure: Exception | None = None

    @property
    def full(self) -> bool:
        """Whether more than MAX_UNREAD_PREDICTIONS are in the queue."""
        return self._predictions > MAX_UNREAD_PREDICTIONS

    def put(self, result: Result) -> None:
        """Add a result; never blocks, so results of images in progress may exceed the limit."""
        predictions = result.extent
        self._predictions += predictions
        self._queue.put_nowait((result, predictions))

    def end(self, failure: Exception | None = None) -> None:
        """Mark the end of the results, with the error that has ended the request, if any."""
        self._failure = failure
        self._queue.put_nowait((None, 0))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Result:
        """The next result that is ready; after the last one, raises the error that has ended the request, if any."""
        result, predictions = await self._queue.get()
        self._predictions -= predictions
        self._taken.set()
        if result is None:
            try:
                raise self._failure or StopAsyncIteration
            finally:
                self._failure = None  # its traceback keeps the request
        return result

    async def paced(self, uploads: Uploads) -> Uploads:
        """The uploads; none is read while the queue is full."""
        async with aclosing(uploads):
            while True:
                await self.wait_for_space()
                upload = await anext(uploads, None)
                if upload is None:
                    return
                yield upload

    async def wait_for_space(self) -> None:
        """Wait while the queue is full."""
        while self.full:
            self._taken.clear()
            await self._taken.wait()


@asynccontextmanager
async def running(
    run: Callable[[Uploads, Callable[[Result], None]], Awaitable[None]], uploads: Uploads
) -> AsyncIterator[ReadyResults]:
    """The results of a request. `run` reads the uploads in another task, and gives each result to a function.

    The request ends with the context. The iteration raises what `run` raises.
    """
    results = ReadyResults()

    async def run_to_its_end() -> None:
        try:
            await run(results.paced(uploads), results.put)
        except Exception as failure:  # raised by the iteration
            results.end(failure)
        else:
            results.end()

    async with Scope() as scope:
        scope.start(run_to_its_end())
        yield results
