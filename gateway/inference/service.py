"""Uploads in, one result for each out: the path of a request between HTTP and the inference server."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from typing import Self

from gateway.inference.batching import Batcher
from gateway.inference.observer import Observers
from gateway.inference.request import DisconnectWatcher, Request, Step, Take
from gateway.inference.request_spec import RequestSpec
from gateway.inference.result import Result
from gateway.inference.tools import Scope, Tools
from gateway.ingest.upload import Uploads
from gateway.limits.account import Account

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
                del upload  # nothing counts its bytes while the next one arrives

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


class InferenceService:
    """Classifies the uploads of many requests at once; each goes through `steps`, see gateway.predict.image_steps."""

    def __init__(self, tools: Tools, steps: Sequence[Step], observers: Observers | None = None) -> None:
        self.tools = tools
        self.backend = tools.backend
        self.admission = tools.admission
        self.observers = observers or Observers()
        self._batcher = Batcher(tools, self.observers)
        self._steps = tuple(steps)

    async def start(self) -> None:
        """Start the observers."""
        await self.observers.start(self.tools)

    async def run(
        self,
        uploads: Uploads,
        spec: RequestSpec,
        take: Take,
        disconnected: DisconnectWatcher | None = None,
        account: Account | None = None,
    ) -> None:
        """Classify uploads: `take` gets one result for each, in the order of completion.

        Raises an exception of `uploads`, `take` or `disconnected`, which ends the request; an error of one file is in
        its result. Each file has its result within `spec.timeout_seconds` of its last byte. Decoding is charged to
        `account`, or to an account of the request's own.

        At the end, for whatever reason, all tasks of the request have ended and its permits are released, except those
        of images in calls, and other work in `tools.uncancelled`, that have not ended yet.
        """
        done, keeps_files = self.observers.done, self.observers.keep_files
        request = Request(self.tools, done, self._steps, self._batcher, spec, take, account, keeps_files=keeps_files)
        try:
            await request.run(uploads, disconnected)
        finally:
            request.close()

    def classify(
        self,
        uploads: Uploads,
        spec: RequestSpec,
        disconnected: DisconnectWatcher | None = None,
        account: Account | None = None,
    ) -> AbstractAsyncContextManager[ReadyResults]:
        """As `run`, for a caller that iterates over the results while the uploads are read.

        The request ends with the `async with` block. The iteration raises what `run` raises.
        """
        return running(lambda uploads, take: self.run(uploads, spec, take, disconnected, account), uploads)

    async def close(self) -> None:
        """End the observers, and wait a limited time for work that cannot be cancelled."""
        await self.observers.close()
        await self.tools.uncancelled.close()
