"""One request on its way: reads its uploads, and iterates over their results."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Self, TypeVar

import anyio

from gateway.deadline import Deadline
from gateway.errors import DeadlineExceeded, Overloaded
from gateway.inference.batching import RequestQueue
from gateway.inference.counts import count
from gateway.inference.observer import Observers
from gateway.inference.ready_results import ReadyResults
from gateway.inference.record import ImageRecord
from gateway.inference.result import Result
from gateway.inference.scope import Scope
from gateway.inference.tools import Tools
from gateway.ingest.media_types import Uploads
from gateway.ingest.upload import Upload
from gateway.limits.account import Account
from gateway.limits.admission import Permit, Permits
from gateway.time_slices import TimeSlice

T = TypeVar("T")

DisconnectWatcher = Callable[[], Awaitable[None]]
"""Waits until the results are no longer needed, for example since the client has disconnected; then it raises."""
Process = Callable[["RunningRequest", Upload], Awaitable[None]]
"""Takes one upload through the steps of an image; see gateway.inference.steps."""


class RunningRequest:
    """Reads the uploads of one request, has each processed, and iterates over the results.

    All its tasks run in `scope`, its images have their permits from `permits`, and wait in `queue`.
    """

    def __init__(
        self,
        tools: Tools,
        observers: Observers,
        process: Process,
        queue: RequestQueue,
        scope: Scope,
        permits: Permits,
        account: Account | None = None,
    ) -> None:
        self.tools = tools
        self.queue = queue
        self.spec = queue.spec
        self.stages = queue.spec.stats.stages
        self.account = account or tools.decoders.account(queue.spec.charges.caller)
        self.begun = False
        """Whether an image has had a permit."""
        gives_way = queue.spec.expansion is not None and queue.spec.expansion.gives_way
        self._observers = () if gives_way else observers.done
        self.keeps_records = observers.keep_records and not gives_way
        """Whether an observer needs an ImageRecord of each image."""
        self._process = process
        self._scope = scope
        self._permits = permits
        # Further images would only wait, with permits that images of other requests could use.
        self._most_permits = tools.batches.max_calls * tools.batches.max_images
        queue.on_error = self._fail
        self._open = 0
        self._read_all = False
        self._results = ReadyResults()
        self._failure: Exception | None = None

    def start(self, uploads: Uploads, disconnected: DisconnectWatcher | None) -> None:
        """Start to read the uploads; if `disconnected` raises, the request ends."""
        self.spawn(self._read, uploads)
        if disconnected is not None:
            self.spawn(disconnected)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Result:
        """The next result that is ready; after the last one, raises the error that has ended the request, if any."""
        result = await self._results.take()
        if result is None:
            try:
                raise self._failure or StopAsyncIteration
            finally:
                self._failure = None  # its traceback keeps the request
        count(self.spec, result)
        return result

    def spawn(self, work: Callable[..., Awaitable[None]], *arguments: object) -> None:
        """Do some of the request's work in a task of its own; an exception ends the request."""
        self._scope.start(self._guard(work, *arguments))

    async def permit(self, nbytes: int, deadline: Deadline, decode_seconds: float = 0) -> Permit:
        """Wait until the request may have another image in flight, and then for the image's permit.

        Raises DeadlineExceeded, or Overloaded if too many images wait or the request's first one waits too long.
        """
        if (
            len(self._permits) < self._most_permits
            and (permit := self._permits.try_acquire(nbytes, decode_seconds)) is not None
        ):
            self.begun = True
            return permit
        left_seconds = deadline.left_seconds
        max_wait_seconds = self.tools.admission.max_wait_seconds
        most_seconds = left_seconds if self.begun else min(left_seconds, max_wait_seconds)
        with anyio.move_on_after(most_seconds):
            await self._permits.fewer_than(self._most_permits)
            permit = await self._permits.acquire(nbytes, decode_seconds, begun=self.begun)
            self.begun = True
            return permit
        if most_seconds < left_seconds:
            raise Overloaded(
                f"The request's first image could not be processed within {most_seconds:g} s; try again later.",
                limit="max_wait_seconds",
                value=most_seconds,
            )
        raise DeadlineExceeded

    def report(self, result: Result, record: ImageRecord | None) -> None:
        """Take the result of a file: the client gets it, and the observers see it."""
        _drop_tracebacks(result.error)
        self._open -= 1
        for done in self._observers:
            done(self.spec, result, record)
        self._results.put(result)
        self._end_if_done()

    async def _guard(self, work: Callable[..., Awaitable[None]], *arguments: object) -> None:
        try:
            await work(*arguments)
        except Exception as failure:  # raised again by __anext__
            self._fail(failure)

    def _fail(self, failure: Exception) -> None:
        """End the request with an error, after the results that are ready at this moment."""
        self._failure = self._failure or failure
        asyncio.get_running_loop().call_soon(self._results.end)

    async def _read(self, uploads: Uploads) -> None:
        """Start each upload as soon as it has arrived; the next one is read once this one has its permit."""
        async with aclosing(uploads):
            while True:
                if self._results.full:
                    await self._results.wait_for_space()
                with self.stages["read"]:
                    upload = await anext(uploads, None)
                if upload is None:
                    break
                self._open += 1
                time_slice = TimeSlice()
                await self._process(self, upload)
                await time_slice.pause_if_over()  # the header alone may take 20 ms
        self._read_all = True
        self._end_if_done()

    def _end_if_done(self) -> None:
        if self._read_all and self._open == 0:
            self._results.end()


async def within(deadline: Deadline, work: Awaitable[T]) -> T:
    """The result of `work`; at the deadline it is cancelled, and DeadlineExceeded is raised."""
    with anyio.move_on_after(deadline.left_seconds):
        return await work
    raise DeadlineExceeded


def _drop_tracebacks(error: BaseException | None) -> None:
    """Release the stack frames of an error and its causes: they may hold megabytes of the image."""
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
