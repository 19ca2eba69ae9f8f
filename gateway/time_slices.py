"""Turns in the event loop: long work on what a client sent lets others have theirs, and so does the collector."""

import asyncio
import gc
import threading
import time
from collections import deque

TIME_SLICE_SECONDS = 0.001
"""How long one task may work before it lets the others."""
MIDDLE_COLLECTIONS = 50
"""Collections of the middle generation between two full ones: some 400,000 objects come on top of those that go."""
LATE_SECONDS = 0.025
"""How long a round of the event loop may last, by the heartbeat, before every turn is over: many short ones add up."""


class TimeSlice:
    """The time for which a task has worked without a pause; made by the task, and asked often.

    In each round of the event loop one of the tasks whose turn is over goes on, in the order in which they paused: so
    their times do not add up, and what is quick is served between any two of them.
    """

    __slots__ = ("_since",)

    def __init__(self) -> None:
        self._since = time.perf_counter()

    async def pause_if_over(self) -> None:
        """Let other tasks run if the turn is over, and begin another one."""
        now = time.perf_counter()
        if now - self._since > TIME_SLICE_SECONDS or now - getattr(_here, "beaten", now) > LATE_SECONDS:
            await _line().wait()
            self._since = time.perf_counter()


class _Line:
    """The tasks of one event loop whose turns are over."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def wait(self) -> None:
        """Wait for the next turn."""
        turn = self.loop.create_future()
        self._waiting.append(turn)
        if len(self._waiting) == 1:
            self.loop.call_soon(self._give_turn)
        await turn

    def _give_turn(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # cancelled meanwhile
                turn.set_result(None)
                break
        if self._waiting:
            self.loop.call_soon(self._give_turn)


_here = threading.local()


def beat() -> None:
    """Say that this thread's event loop has come round; `rest` when nobody says so any more."""
    _here.beaten = time.perf_counter()


def rest() -> None:
    """The heartbeat has ended."""
    vars(_here).pop("beaten", None)


def _line() -> _Line:
    loop = asyncio.get_running_loop()
    line: _Line | None = getattr(_here, "line", None)
    if line is None or line.loop is not loop:
        line = _here.line = _Line(loop)
    return line


def keep_what_was_made() -> None:
    """Take all objects so far out of the garbage collection, for a process that has made what it keeps.

    A full collection looks at every object and holds the event loop meanwhile: the imports alone are 50 ms of it, and a
    thousand busy connections 50 to 100 ms. So full collections are made rarer as well.
    """
    gc.collect()
    gc.freeze()
    youngest, middle, _ = gc.get_threshold()
    gc.set_threshold(youngest, middle, MIDDLE_COLLECTIONS)
