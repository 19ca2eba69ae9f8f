"""Time on the event loop: deadlines, and time slices of tasks with much synchronous work."""

import asyncio
import gc
import signal
import threading
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import FrameType
from typing import NamedTuple

BLOCKED_SECONDS = 1.0
"""How much later than its timeout work that blocks the event loop is interrupted."""


class Deadline(NamedTuple):
    """A point in time in seconds of `time.monotonic`; converted to a timeout only where a library needs one."""

    at: float

    @classmethod
    def after(cls, seconds: float) -> "Deadline":
        """The deadline `seconds` from now."""
        return cls(time.monotonic() + seconds)

    @property
    def left_seconds(self) -> float:
        """Seconds until the deadline, 0.0 once it has passed."""
        return max(0.0, self.at - time.monotonic())

    @property
    def passed(self) -> bool:
        """Whether the deadline has passed."""
        return time.monotonic() >= self.at


@asynccontextmanager
async def interrupted_after(seconds: float) -> AsyncIterator[None]:
    """As `asyncio.timeout`, and also for work that blocks the event loop, such as a thread's `join`.

    Python interrupts such work in the main thread only, by a signal; the heartbeat, which uses the same one, must not
    be running. The signal is postponed while the event loop runs: it would end the loop itself.
    """
    loop, deadline = asyncio.get_running_loop(), Deadline.after(seconds)
    postponing: asyncio.TimerHandle | None = None

    def postpone() -> None:
        nonlocal postponing
        left_seconds = deadline.left_seconds
        signal.setitimer(signal.ITIMER_REAL, left_seconds + BLOCKED_SECONDS)
        postponing = loop.call_later(left_seconds + BLOCKED_SECONDS / 2, postpone)

    if threading.current_thread() is threading.main_thread():
        handler, timer = signal.signal(signal.SIGALRM, _interrupt), signal.getitimer(signal.ITIMER_REAL)
        postpone()
    try:
        async with asyncio.timeout(seconds):
            yield
    finally:
        if postponing is not None:
            postponing.cancel()
            signal.setitimer(signal.ITIMER_REAL, *timer)
            signal.signal(signal.SIGALRM, handler)


def _interrupt(_: int, __: FrameType | None) -> None:
    raise TimeoutError


TIME_SLICE_SECONDS = 0.001
"""Time that one task may run before it pauses."""
YOUNG_OBJECTS, MIDDLE_COLLECTIONS = 5_000, 7
"""New objects between two collections of the youngest generation, of which most are freed by then; and collections of
the middle generation between two full ones: up to about 400,000 unreachable objects stay longer."""
LATE_SECONDS = 0.025
"""Time since the last heartbeat after which every time slice is over: many short slices add up."""


class TimeSlice:
    """The time that a task has run without a pause; the task creates it and calls `pause_if_over` often.

    In each iteration of the event loop one paused task continues, in the order in which the tasks paused: their slices
    do not add up, and short tasks run between any two of them.
    """

    __slots__ = ("_since",)

    def __init__(self) -> None:
        self._since = time.perf_counter()

    @property
    def is_over(self) -> bool:
        """Whether other tasks should run now."""
        now = time.perf_counter()
        return now - self._since > TIME_SLICE_SECONDS or now - getattr(_thread, "beaten", now) > LATE_SECONDS

    async def pause_if_over(self) -> None:
        """If the time slice is over, let other tasks run, then begin a new slice."""
        if self.is_over:
            await self.pause()

    async def pause(self) -> None:
        """Let other tasks run, then begin a new slice."""
        await _queue().wait()
        self._since = time.perf_counter()


class _Queue:
    """The paused tasks of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def wait(self) -> None:
        """Wait for the next time slice."""
        wakeup = self.loop.create_future()
        self._waiting.append(wakeup)
        if len(self._waiting) == 1:
            self.loop.call_soon(self._wake_next)
        await wakeup

    def _wake_next(self) -> None:
        while self._waiting:
            wakeup = self._waiting.popleft()
            if not wakeup.done():  # cancelled meanwhile
                wakeup.set_result(None)
                break
        if self._waiting:
            self.loop.call_soon(self._wake_next)


_thread = threading.local()


def beat() -> None:
    """Record a heartbeat of this thread's event loop; call `rest` when the heartbeat ends."""
    _thread.beaten = time.perf_counter()


def rest() -> None:
    """End the heartbeat of this thread's event loop."""
    vars(_thread).pop("beaten", None)


def _queue() -> _Queue:
    loop = asyncio.get_running_loop()
    queue: _Queue | None = getattr(_thread, "queue", None)
    if queue is None or queue.loop is not loop:
        queue = _thread.queue = _Queue(loop)
    return queue


def freeze_garbage() -> None:
    """Exclude all existing objects from garbage collection; for a process that has created its long-lived objects.

    A full collection visits every object and blocks the event loop: 50 ms for the imported modules, 50 to 100 ms for a
    thousand busy connections. Full collections are therefore also made rarer, and so are collections of new objects: a
    request makes some hundreds, of which nearly all are freed at its end.
    """
    gc.collect()
    gc.freeze()
    _, middle, _ = gc.get_threshold()
    gc.set_threshold(YOUNG_OBJECTS, middle, MIDDLE_COLLECTIONS)
