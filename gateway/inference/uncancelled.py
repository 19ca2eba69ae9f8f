"""Work that cannot be stopped, and who owns it when nobody waits for it any more."""

import asyncio
from collections.abc import Collection, Coroutine
from functools import partial
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

CLOSING_SECONDS = 5.0
"""How long the end of the process waits for such work."""


class Holding(Protocol):
    """What such work holds: a permit, or a place."""

    def keep(self) -> None:
        """Stay taken until `settle`, even if it is released before."""
        ...

    def settle(self) -> None:
        """The work has ended."""
        ...


class Uncancelled:
    """Owns work that must run to its end: a call that the server does not survive being cancelled, a thread.

    Whoever asked for it may give up waiting; its permits stay out until it has ended.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    async def run(self, work: Coroutine[Any, Any, T], permits: Collection[Holding] = ()) -> T:
        """The result of `work`, which keeps its permits to its end, even if this wait for it is cancelled."""
        for permit in permits:
            permit.keep()
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, tuple(permits)))
        await asyncio.wait({task})  # which leaves the task alone when it is cancelled
        return task.result()

    async def idle(self) -> None:
        """Wait until nothing runs."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def close(self, grace_seconds: float = CLOSING_SECONDS) -> None:
        """Wait `grace_seconds` for what still runs, and then give it up."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace_seconds)
        for task in self._tasks:
            task.cancel()
        await self.idle()

    def _ended(self, permits: tuple[Holding, ...], task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        for permit in permits:
            permit.settle()
        if not task.cancelled():
            task.exception()  # seen: nobody may be left to see it
