"""Turns in the event loop: long work on what a client sent lets others have theirs, and so does the collector."""

import asyncio
import gc
import time

TURN_SECONDS = 0.003
"""How long one task may work before it lets the others. Several long ones take turns, so their times add up."""


class Turn:
    """The time for which a task has worked without a pause; made by the task, and asked often."""

    __slots__ = ("_since",)

    def __init__(self) -> None:
        self._since = time.perf_counter()

    async def pause_if_over(self) -> None:
        """Let other tasks run if the turn is over, and begin another one."""
        if time.perf_counter() - self._since > TURN_SECONDS:
            await asyncio.sleep(0)
            self._since = time.perf_counter()


def keep_what_was_made() -> None:
    """Take all objects so far out of the garbage collection, for a process that has made what it keeps.

    A full collection looks at every object and holds the event loop meanwhile: the imports alone are 50 ms of it.
    """
    gc.collect()
    gc.freeze()
