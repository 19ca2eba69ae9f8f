"""The time by which a response must be ready, or something must have ended."""

import asyncio
import signal
import threading
import time
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
