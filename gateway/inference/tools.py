"""Objects that all requests share."""

import asyncio
from collections.abc import Collection, Coroutine
from contextvars import Context
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

from gateway.inference.backend import Backend
from gateway.ingest.inspection import DecodePolicy
from gateway.limits.admission import Admission
from gateway.limits.pools import Lease

if TYPE_CHECKING:
    from gateway.ingest.decoders.pool import Decoders

T = TypeVar("T")

AGAIN_SECONDS = 0.05
"""A task that has swallowed its cancellation is cancelled once more after this time."""


class Scope:
    """A group of tasks, none of which outlives it.

    asyncio's TaskGroup cancels a task once, and waits forever for one that swallows the cancellation (as
    `asyncio.wait_for` did before Python 3.12); anyio's takes three times the processor time. The tasks must handle
    their own errors.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Run a task until the scope ends."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Cancel the tasks until all have ended, even if the caller is cancelled meanwhile."""
        cancelled = False
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            try:
                await asyncio.sleep(0)  # most tasks end at once
                if running := [task for task in self._tasks if not task.done()]:
                    await asyncio.wait(running, timeout=AGAIN_SECONDS)
            except asyncio.CancelledError:
                cancelled = True
            self._tasks = {task for task in self._tasks if not task.done()}
        if cancelled:
            raise asyncio.CancelledError

    def _forget(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)


CLOSING_SECONDS = 5.0
"""How long `close` waits for such work."""


class Uncancelled:
    """Owns work that may outlive its request: a call, which may crash the server if it is cancelled, or a thread.

    The caller may stop waiting; the permits stay taken until the work has ended.
    """

    def __init__(self) -> None:
        self.tasks: set[asyncio.Task[Any]] = set()
        """The tasks in progress. A caller that handles the end of a task may add and remove it itself."""

    def __len__(self) -> int:
        return len(self.tasks)

    async def run(self, work: Coroutine[Any, Any, T], permits: Collection[Lease] = ()) -> T:
        """The result of `work`, which keeps its permits to its end, even if this wait for it is cancelled."""
        for permit in permits:
            permit.keep()
        task = self.start(work)
        task.add_done_callback(partial(_settle, tuple(permits)))
        await asyncio.wait({task})  # unlike await task, its cancellation does not cancel the task
        return task.result()

    def start(self, work: Coroutine[Any, Any, T], context: Context | None = None) -> "asyncio.Task[T]":
        """A task that does `work`, in a context if one is given, and that its caller need not wait for."""
        task = asyncio.get_running_loop().create_task(work, context=context)
        self.tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def idle(self) -> None:
        """Wait until nothing runs."""
        while self.tasks:
            await asyncio.wait(self.tasks)

    async def close(self, grace_seconds: float = CLOSING_SECONDS) -> None:
        """Wait up to `grace_seconds` for running work, and then cancel it."""
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=grace_seconds)
        for task in self.tasks:
            task.cancel()
        await self.idle()

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        self.tasks.discard(task)
        if not task.cancelled():
            task.exception()  # marks the exception as retrieved: the caller may be gone


def _settle(permits: tuple[Lease, ...], _: "asyncio.Task[Any]") -> None:
    for permit in permits:
        permit.settle()


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Limits of calls: `max_images` and `max_bytes` in each, and `max_calls` at a time with images of one request."""

    max_images: int
    max_bytes: int
    max_calls: int


@dataclass(frozen=True, slots=True)
class Tools:
    """The parts of the service with which images are read, admitted, decoded and classified."""

    backend: Backend
    admission: Admission
    policy: DecodePolicy
    batches: BatchLimits
    decoders: "Decoders"
    uncancelled: Uncancelled = field(default_factory=Uncancelled)
    """Work that may outlive its request: calls, and work that cannot be cancelled."""
