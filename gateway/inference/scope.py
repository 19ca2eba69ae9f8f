"""A scope for the tasks of one request."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Self, TypeVar

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
