"""An ordered stop: first readiness turns false, then the port is closed, then the requests in flight are finished."""

import asyncio
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import structlog

log = structlog.get_logger("gateway")


class Draining:
    """`begun` is True from the first SIGTERM or SIGINT on.

    `closes` is True then as well, and while this process leaves new connections to others: each response then asks the
    client to close its connection.
    """

    def __init__(self) -> None:
        self.begun = self.closes = False
        self._began_at = 0.0

    def begin(self) -> None:
        """Turn readiness off and ask clients to close their connections."""
        if not self.begun:
            self.begun, self._began_at = True, time.monotonic()
        self.closes = True

    def retire(self) -> None:
        """Ask clients to close their connections; the service continues in other processes."""
        self.closes = True

    def left_seconds(self, seconds: float) -> float:
        """How much of a time from the first signal on is left; all of it without a signal."""
        return max(0.0, seconds - (time.monotonic() - self._began_at)) if self.begun else seconds


@contextmanager
def draining_on_signals(delay_seconds: float) -> Iterator[Draining]:
    """Leave load balancers `delay_seconds` between a signal and the server's own stop; a second signal is final.

    The server must have installed its handlers before, as uvicorn has when it starts the lifespan.
    """
    draining = Draining()
    if threading.current_thread() is not threading.main_thread():  # a test's client; only this thread gets signals
        yield draining
        return
    loop = asyncio.get_running_loop()
    servers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def stop(number: int, frame: FrameType | None) -> None:
        handler = servers[signal.Signals(number)]
        if not callable(handler):
            return
        if draining.begun or not delay_seconds:
            draining.begin()
            handler(number, frame)
            return
        draining.begin()
        log.info("draining", seconds=delay_seconds)
        loop.call_soon_threadsafe(loop.call_later, delay_seconds, handler, number, None)

    for number in servers:
        signal.signal(number, stop)
    try:
        yield draining
    finally:
        for number, handler in servers.items():
            signal.signal(number, handler)
