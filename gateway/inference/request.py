"""One request on its way: reads its uploads, and gives the result of each to its caller."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from gateway.deadline import Deadline
from gateway.errors import DeadlineExceeded, Overloaded
from gateway.inference.counts import count
from gateway.inference.observer import Observers
from gateway.inference.queues import RequestQueue
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
Take = Callable[[Result], None]
"""Takes the result of a file when it is ready; an error that it raises ends the request."""


class RunningRequest:
    """Reads the uploads of one request, has each processed, and gives each result to `take`.

    Its images have their permits from `permits`, and wait in `queue`. `run` works in its caller's task and interrupts
    the task's waits as asyncio.timeout does, by a cancellation that it takes back. Other tasks are started for decoding
    and, if the uploads are not read at once, for `disconnected`.
    """

    def __init__(
        self,
        tools: Tools,
        observers: Observers,
        process: Process,
        queue: RequestQueue,
        permits: Permits,
        take: Take,
        account: Account | None = None,
    ) -> None:
        self.tools = tools
        self.queue = queue
        self.spec = spec = queue.spec
        self.stages = spec.stats.stages
        self.tensor_input = tools.backend.tensor_input(spec.model_name, spec.model_version)
        """How a decoder makes the model's input; None of a model that takes files."""
        self.account = account or tools.decoders.account(client=spec.charges.caller)
        self.begun = False
        """Whether an image has had a permit."""
        has_lowest_priority = spec.expansion is not None and spec.expansion.has_lowest_priority
        self._observers = () if has_lowest_priority else observers.done
        self.keeps_records = observers.keep_records and not has_lowest_priority
        """Whether an observer needs an ImageRecord of each image."""
        self._process = process
        self._permits = permits
        # Further images would only wait, with permits that images of other requests could use.
        self._most_permits = tools.batches.max_calls * tools.batches.max_images
        self._take = take
        queue.on_error = self._fail
        self._open = 0
        """Uploads without a result."""
        self._read_all = self._watched = self._interrupted = False
        self._failure: Exception | None = None
        self._task: asyncio.Task[object] | None = None
        """The task of `run`, while it may be interrupted."""
        self._scope: Scope | None = None

    async def run(self, uploads: Uploads, disconnected: DisconnectWatcher | None) -> None:
        """Read all uploads, and return when each has its result.

        Raises what ends the request before: an error of `uploads`, `disconnected` or `take`, or one of the whole
        request in a step or a call. No task of the request is left then.
        """
        self._task = task = asyncio.current_task()
        assert task is not None
        cancellations = task.cancelling()
        loop = asyncio.get_running_loop()
        watch = None if disconnected is None else loop.call_soon(self._watch, disconnected)
        try:
            await self._read(uploads)
            self._read_all = True
            if self._open and self._failure is None:
                if watch is not None:
                    watch.cancel()
                await (loop.create_future() if self._watched or disconnected is None else disconnected())
        except asyncio.CancelledError:
            if not self._interrupted or task.cancelling() > cancellations + 1:
                raise
        finally:
            self._task = None
            if self._interrupted:
                task.uncancel()
            if watch is not None:
                watch.cancel()
            if self._scope is not None:
                await self._scope.close()
        if self._failure is not None:
            try:
                raise self._failure
            finally:
                self._failure = None  # its traceback keeps the request

    def spawn(self, work: Callable[..., Awaitable[None]], *arguments: object) -> None:
        """Do some of the request's work in a task of its own; an exception ends the request."""
        if self._scope is None:
            self._scope = Scope()
        self._scope.start(self._guard(work, *arguments))

    async def permit(self, nbytes: int, deadline: Deadline, decode_seconds: float = 0) -> Permit:
        """Wait until the request may have another image in flight, and then for the image's permit.

        Raises DeadlineExceeded, or Overloaded if too many images wait or the request's first one waits too long.
        """
        wait = self.stages["wait"]
        if (
            len(self._permits.held) < self._most_permits
            and (permit := self._permits.try_acquire(nbytes, decode_seconds)) is not None
        ):
            self.begun = True
            return permit
        left_seconds = deadline.left_seconds
        max_wait_seconds = self.tools.admission.max_wait_seconds
        most_seconds = left_seconds if self.begun else min(left_seconds, max_wait_seconds)
        with wait, anyio.move_on_after(most_seconds):
            await self._permits.wait_for_space(self._most_permits)
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
        """Take the result of a file: it is counted, the observers see it, and the caller gets it."""
        if result.error is not None:
            _drop_tracebacks(result.error)
        self._open -= 1
        for done in self._observers:
            done(self.spec, result, record)
        count(self.spec, result)
        self._take(result)
        if self._read_all and self._open == 0:
            self._interrupt()

    async def _read(self, uploads: Uploads) -> None:
        """Start each upload as soon as it has arrived; the next one is read once this one has its permit."""
        read = self.stages["read"]
        over: TimeSlice | None = None
        try:
            while self._failure is None:
                with read:
                    upload = await anext(uploads, None)
                if upload is None:
                    break
                self._open += 1
                if over is not None:  # the header alone may take 20 ms
                    await over.pause()
                time_slice = TimeSlice()
                await self._process(self, upload)
                over = time_slice if time_slice.is_over else None
        finally:
            await uploads.aclose()

    def _watch(self, disconnected: DisconnectWatcher) -> None:
        self._watched = True
        self.spawn(disconnected)

    async def _guard(self, work: Callable[..., Awaitable[None]], *arguments: object) -> None:
        try:
            await work(*arguments)
        except Exception as failure:  # raised by run
            self._fail(failure)

    def _fail(self, failure: Exception) -> None:
        """End the request with an error."""
        self._failure = self._failure or failure
        self._interrupt()

    def _interrupt(self) -> None:
        """End what `run` waits for, if it waits."""
        task = self._task
        if task is not None and not self._interrupted and asyncio.current_task() is not task:
            self._interrupted = True
            task.cancel()


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
