"""The owner of work that cannot be cancelled and may outlive its caller."""

import asyncio
from collections.abc import Collection, Coroutine
from contextvars import Context
from functools import partial
from typing import Any, TypeVar

from gateway.limits.lease import Lease

T = TypeVar("T")

CLOSING_SECONDS = 5.0
"""How long `close` waits for such work."""


class Uncancelled:
    """Owns work that may outlive its request: a call, which may crash the server if it is cancelled, or a thread.

    The caller may stop waiting; the permits stay taken until the work has ended.
    """

    def __init__(self) -> None:
        self.tasks: set[asyncio.Task[Any]] = set()
        """Those in progress. Whoever sees to the end of a task may add and remove it here, instead of by `start`."""

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
