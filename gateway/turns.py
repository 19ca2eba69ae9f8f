"""Turns in the event loop: long work on what a client sent lets others have theirs."""

import asyncio
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
