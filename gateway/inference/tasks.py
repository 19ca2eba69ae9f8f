"""Tasks in groups that end together."""

import asyncio
from collections.abc import Collection, Coroutine
from contextvars import Context
from functools import partial
from typing import Any, Self, TypeVar

from gateway.limits.bounds import Lease

T = TypeVar("T")

CLOSING_SECONDS = 5.0
"""How long a service waits at its end for work that cannot be cancelled."""
AGAIN_SECONDS = 0.05
"""A task that has swallowed its cancellation is cancelled once more after this time."""


class Tasks:
    """A group of tasks, none of which outlives it.

    asyncio's TaskGroup cancels a task once, and waits forever for one that swallows the cancellation (as
    `asyncio.wait_for` did before Python 3.12); anyio's takes three times the processor time. The tasks must handle
    their own errors.
    """

    def __init__(self) -> None:
        self.running: set[asyncio.Task[Any]] = set()
        """A caller that handles the end of a task may add and remove it itself."""

    def __len__(self) -> int:
        return len(self.running)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def start(self, work: Coroutine[Any, Any, T], context: Context | None = None) -> "asyncio.Task[T]":
        """Do `work` in a task of the group, and in a context if one is given."""
        task = asyncio.get_running_loop().create_task(work, context=context)
        self.running.add(task)
        task.add_done_callback(self.running.discard)
        return task

    async def run(self, work: Coroutine[Any, Any, T], permits: Collection[Lease] = ()) -> T:
        """The result of `work` that must not be cancelled: if the caller is cancelled, it goes on until `close`.

        It keeps its permits until it has ended. For a call, which may crash the server if it is cancelled, or a thread.
        """
        for permit in permits:
            permit.pin()
        task = self.start(work)
        task.add_done_callback(partial(_unpin, tuple(permits)))
        await asyncio.wait({task})  # unlike await task, its cancellation does not cancel the task
        return task.result()

    async def close(self, grace_seconds: float = 0.0) -> None:
        """Wait up to `grace_seconds` for the tasks, then cancel them until all have ended.

        If the caller is cancelled meanwhile, it is so after that.
        """
        cancelled = False
        try:
            if grace_seconds and self.running:
                await asyncio.wait(self.running, timeout=grace_seconds)
        except asyncio.CancelledError:
            cancelled = True
        while running := [task for task in self.running if not task.done()]:
            for task in running:
                task.cancel()
            try:
                await asyncio.sleep(0)  # most tasks end at once
                if running := [task for task in running if not task.done()]:
                    await asyncio.wait(running, timeout=AGAIN_SECONDS)
            except asyncio.CancelledError:
                cancelled = True
        if cancelled:
            raise asyncio.CancelledError


def _unpin(permits: tuple[Lease, ...], task: "asyncio.Task[Any]") -> None:
    for permit in permits:
        permit.unpin()
    if not task.cancelled():
        task.exception()  # marks it as retrieved: the caller may be gone
