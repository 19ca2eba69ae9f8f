"""Measures pauses of the event loop, in which every client waits."""

import asyncio
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Self

import structlog

from gateway import metrics, timing

log = structlog.get_logger("gateway")

BEAT_SECONDS, REST_SECONDS, REST_CPU_SECONDS, ALONE_SECONDS = 0.01, 0.05, 0.001, 1.0
"""Time between two beats: REST_SECONDS if less than REST_CPU_SECONDS of processor time passed before, ALONE_SECONDS if
also no client was connected then. A pause is measured too short by at most this time; a beat costs some ten
microseconds."""
WINDOW_SECONDS = 15
"""Prometheus scrapes every 15 seconds by default, so that no pause is lost between two scrapes."""
LONG_SECONDS = 0.05
"""Longest pause that a request may cause; longer pauses are logged if the loop computed through them."""
BLOCKED_SECONDS = 0.25
"""A longer pause is logged if a plug-in's code caused it, even if it computed nothing."""


class Pauses:
    """The longest pause of the last WINDOW_SECONDS, published as a metric; each second's own pauses are logged too.

    A pause above LONG_SECONDS in which the loop computed all the time is the gateway's fault. The pauses of a busy
    machine are in the metric alone. `now` and pauses are in seconds of a monotonic clock.
    """

    def __init__(self, now: float) -> None:
        self._second = int(now)
        self._longest = deque([0.0], maxlen=WINDOW_SECONDS)  # of each second
        self._published = -1.0
        self._own: list[tuple[float, float, str]] = []
        """Of this second, to be logged: seconds, of which processor time, the plug-in or ""."""

    def note(self, now: float, pause_seconds: float, cpu_seconds: float, plugin: str = "") -> None:
        """Count a pause that ended now, with the processor time of the loop's thread and the plug-in that caused it."""
        if int(now) != self._second:
            self._end_second(int(now))
        self._longest[-1] = max(self._longest[-1], pause_seconds)
        computed = pause_seconds > LONG_SECONDS and cpu_seconds > LONG_SECONDS
        if computed or (plugin and pause_seconds > BLOCKED_SECONDS):
            self._own.append((pause_seconds, cpu_seconds, plugin))
        if (longest := max(self._longest)) != self._published:
            metrics.LOOP_PAUSE_SECONDS.set(longest)
            self._published = longest

    def _end_second(self, second: int) -> None:
        if self._own:
            seconds, cpu_seconds, plugin = max(self._own)
            named = {"plugin": plugin} if plugin else {}
            fields = {"seconds": round(seconds, 4), "cpu_seconds": round(cpu_seconds, 4), "count": len(self._own)}
            log.warning("loop_paused", **fields, **named)
            self._own.clear()
        self._longest.extend([0.0] * min(second - self._second, WINDOW_SECONDS))
        self._second = second


OwnerOf = Callable[[Sequence[str]], str]
"""The plug-in of the last module that belongs to one; "" if none does."""


class Heartbeat:
    """Measures the pauses of this event loop while its context lasts: a timer, since a task would wake the loop twice.

    When a beat is late, an alarm inspects the running code. It needs the main thread and an unused signal. `connected`
    returns whether there are clients.
    """

    def __init__(self, connected: Callable[[], bool] = lambda: True, owner_of: OwnerOf = lambda _: "") -> None:
        self._connected, self._owner_of = connected, owner_of
        self._pauses = Pauses(time.monotonic())
        self._plugin = ""
        self._loop = asyncio.get_running_loop()
        self._due, self._cpu_seconds = time.monotonic(), time.thread_time()
        self._alarms = (
            threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
        )

    def __enter__(self) -> Self:
        if self._alarms:
            signal.signal(signal.SIGALRM, self._find_plugin)
        self._beat()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        if self._alarms:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
        timing.rest()

    def _beat(self) -> None:
        now, cpu_seconds = time.monotonic(), time.thread_time()
        used_seconds = cpu_seconds - self._cpu_seconds
        self._pauses.note(now, max(0.0, now - self._due), used_seconds, self._plugin)
        if used_seconds > REST_CPU_SECONDS:
            seconds = BEAT_SECONDS
        else:
            seconds = REST_SECONDS if self._connected() else ALONE_SECONDS
        timing.beat()
        self._due, self._cpu_seconds, self._plugin = now + seconds, cpu_seconds, ""
        self._timer = self._loop.call_later(seconds, self._beat)
        if self._alarms:
            signal.setitimer(signal.ITIMER_REAL, seconds + LONG_SECONDS)

    def _find_plugin(self, _: int, frame: FrameType | None) -> None:
        modules: list[str] = []
        while frame is not None:
            modules.append(frame.f_globals.get("__name__", ""))
            frame = frame.f_back
        self._plugin = self._owner_of(modules[::-1])
