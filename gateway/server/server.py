"""uvicorn's server with a stop and a hand-over that lose no request."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
import threading
import time
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from gateway.server.connection import KEEP_ALIVE_SECONDS
from gateway.server.connections import RESERVED
from gateway.server.serve import bound, server_options
from gateway.server.workers import BEAT, BEAT_SECONDS, CLOSING, READY, START_FAILED, STARTED, accept_no_more
from gateway.settings import Settings

ACCEPTED = RESERVED // 4
"""How many connections are accepted in one iteration of the event loop. uvloop accepts one for each listening socket:
with a single socket, a client behind a thousand concurrent connections would wait for a thousand iterations. Fewer than
RESERVED, so that a request that has arrived is read before its connection must leave the reserve."""
CLOSING_SECONDS = 0.1
"""Time between the kernel's last new connection and the closing of the port, in which the others are accepted."""
IDLE_SECONDS = 1.0
"""How long a stop waits for the next request on idle connections; its response closes the connection."""


class Server(uvicorn.Server):
    """uvicorn's server. A stop, and a retirement, answers every received request.

    A worker retires (SIGUSR1) when others serve the same socket: it stops accepting, and serves its connections until
    each has had one more response or was idle for as long as connections may be.
    """

    def __init__(self, config: uvicorn.Config, pipe: int | None = None) -> None:
        super().__init__(config)
        self._pipe = pipe
        self._told_ready = False
        self._beat_at = 0.0
        self._signalled = asyncio.Event()
        self._retires_by: float | None = None
        self._sockets: list[socket.socket] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and tell the supervisor."""
        self._sockets = sockets or []
        await super().startup(sockets)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGUSR1, lambda *_: self.retire())
        self._tell(STARTED)

    async def main_loop(self) -> None:
        """Call `on_tick` ten times a second, as uvicorn does; in a worker at rest once a second, and at a signal.

        Until the worker is ready, it is called twice as often, since the start of the service waits for it.
        """
        counter = 0
        while not await self.on_tick(counter):
            rests = self._told_ready and self._pipe is not None and not self.server_state.connections
            # Each tick at rest is a multiple of ten: uvicorn renews the header Date at these only.
            counter = counter // 10 * 10 + 10 if rests else counter + 1
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0 if rests else 0.1 if self._told_ready else 0.05):
                    await self._signalled.wait()
            self._signalled.clear()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop at the next tick, which is due immediately."""
        super().handle_exit(sig, frame)
        self._tick_soon()

    def retire(self) -> None:
        """Leave new connections to other workers, and end when the present ones have ended."""
        self.lifespan.state["runtime"].draining.retire()
        self._retires_by = time.monotonic() + KEEP_ALIVE_SECONDS + (self.config.timeout_graceful_shutdown or 0)
        self._tick_soon()

    async def on_tick(self, counter: int) -> bool:
        """Report to the supervisor; returns whether to stop."""
        ready = not self._told_ready and self.lifespan.state["runtime"].is_ready()
        if ready or time.monotonic() >= self._beat_at:
            self._told_ready |= ready
            self._tell(READY if ready else BEAT)
            self._beat_at = time.monotonic() + BEAT_SECONDS
        if await super().on_tick(counter):
            return True
        if self._retires_by is None:
            return False
        for server in self.servers:  # new connections wait until both are closed
            server.close()
        for each in self._sockets:
            each.close()
        return not self.server_state.connections or time.monotonic() > self._retires_by

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept what the kernel has accepted, and answer the next request of each idle connection, then stop."""
        if self._retires_by is None:
            self._tell(CLOSING)  # the supervisor calls `accept_no_more`, if all workers stop
            if self._pipe is None and sockets:
                accept_no_more(sockets[0])
            await asyncio.sleep(CLOSING_SECONDS)
        for server in self.servers:
            server.close()
        ends_at = time.monotonic() + IDLE_SECONDS
        while self.server_state.connections and time.monotonic() < ends_at and not self.force_exit:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        await super().shutdown(sockets)

    def _tick_soon(self) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop does not run yet, or has ended
            asyncio.get_running_loop().call_soon_threadsafe(self._signalled.set)

    def _tell(self, what: bytes) -> None:
        if self._pipe is not None:
            with contextlib.suppress(OSError):  # the supervisor has died
                os.write(self._pipe, what)


def run(app: ASGIApp | str, settings: Settings, listener: socket.socket | None = None, pipe: int | None = None) -> None:
    """Run an application, or the one that the function of this name returns, until SIGTERM or SIGINT.

    `listener` is the socket to accept from, by default one of the configured address.
    """
    config = uvicorn.Config(app, factory=isinstance(app, str), **server_options(settings))
    server = Server(config, pipe)
    server.run(listening_sockets(listener or bound(settings)))
    if not server.started:
        sys.exit(START_FAILED)


def listening_sockets(listener: socket.socket) -> list[socket.socket]:
    """The socket, ACCEPTED times."""
    # The workers share the socket and its flags: `dup` of one that blocks would let `accept` of all others block.
    listener.settimeout(0)
    return [listener, *(listener.dup() for _ in range(ACCEPTED - 1))]
