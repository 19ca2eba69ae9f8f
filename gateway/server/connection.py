"""One TCP connection from accept to close: its timer, and the decision whether its socket is read."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from uvicorn import Config
from uvicorn.server import ServerState

from gateway import metrics
from gateway.errors import Overloaded
from gateway.limits.connections import RESERVE_SECONDS, Connections
from gateway.limits.pace import Pace
from gateway.limits.pool_clients import WaitingClient
from gateway.server.handler import Handler, Phase, ServedConnection
from gateway.settings import Settings
from gateway.time_slices import TIME_SLICE_SECONDS

KEEP_ALIVE_SECONDS = 75.0
"""How long a connection may be idle after a response."""
PING_SECONDS = 20.0
"""How often a WebSocket client that sends nothing is pinged; without a pong until the next ping it is disconnected."""
CLOSE_SECONDS = 10.0
"""How long a WebSocket client may take to answer a close frame."""
LINGER_SECONDS = 2.0
"""How long a refused client may go on sending: a connection that is closed with bytes unread is reset, and a reset may
take the response away before the client has read it."""
LINGER_BYTES = 2**20
"""How much a refused client may send meanwhile."""
STRETCH_BYTES = 64 * 1024
"""What a client must read of what was written for it within `answer_timeout_seconds`."""


class Connection(asyncio.Protocol, WaitingClient):
    """Owns a connection: its transport, its timer, and the bytes that were received and not parsed yet.

    A handler parses and runs the application. `update_reading` alone decides whether the socket is read and which timer
    runs; it is called after every event, and by the handler when its phase may have changed.
    """

    handler: Handler
    transport: asyncio.Transport
    addresses: dict[str, tuple[str, int | None] | None]
    """As an ASGI scope has them."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        first_handler: Callable[[ServedConnection], Handler],
    ) -> None:
        self._first_handler = first_handler
        self.loop = _loop or asyncio.get_running_loop()
        self.app = config.loaded_app
        self.asgi_version: str = config.asgi_version
        self.root_path = config.root_path
        self.server_state = server_state
        self.app_state = app_state
        self.settings: Settings = app_state["settings"]
        self.connections: Connections = app_state["connections"]
        self.phase = Phase.REQUEST
        self.writable = asyncio.Event()
        self.writable.set()
        self.pace = Pace(
            min_bytes_per_second=self.settings.min_upload_bytes_per_second,
            grace_seconds=self.settings.upload_grace_seconds,
            now=self.loop.time,
        )
        self._unparsed: deque[memoryview] = deque()
        self._parse_scheduled = False
        self._reads = True
        self._awaits = False
        self._lingers = False
        self._linger_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._slow_reader = SlowReaderTimeout(self.loop, self.settings.answer_timeout_seconds)

    @property
    def is_watched(self) -> bool:
        """Whether a timer or an ASGI task runs that will end what the connection waits for."""
        return self._timer is not None or self.handler.runs

    @property
    def is_closing(self) -> bool:
        """Whether nothing more is parsed or written."""
        return self._lingers or self.transport.is_closing()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # always of this kind
        """Take a slot, and begin to read."""
        self.transport = transport
        self.addresses = {
            "server": _address(transport.get_extra_info("sockname")),
            "client": _address(transport.get_extra_info("peername")),
        }
        self.handler = self._first_handler(self)
        self.server_state.connections.add(self)  # type: ignore[arg-type]  # uvicorn lists its own classes
        self.connections.add(self)
        self.update_reading()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # asyncio's
        """Stop the timers, release the slot, and notify the application."""
        self.server_state.connections.discard(self)
        self.connections.remove(self)
        self._slow_reader.stop()
        self._unparsed.clear()
        self.writable.set()  # nothing is written any more, so no task may wait for it
        self._set_phase(Phase.CLOSED)
        self.handler.lost()
        del self.handler  # they refer to each other, and full garbage collections are long

    def data_received(self, data: bytes) -> None:
        """Parse now, or after what came before."""
        if self._lingers:
            self._linger_bytes -= len(data)
            if self._linger_bytes < 0:
                self.close()
            return
        self.pace.receive(len(data))
        self._unparsed.append(memoryview(data))
        if not self._parse_scheduled:
            self._parse()

    def pause_writing(self) -> None:
        """The client reads more slowly than the application writes."""
        self.writable.clear()
        self.connections.stall(self)
        self._slow_reader.start(self.transport)
        self.update_reading()

    def resume_writing(self) -> None:
        """The client has caught up."""
        self.writable.set()
        self.connections.read_on(self)
        self._slow_reader.stop()
        self.update_reading()

    def shutdown(self) -> None:
        """The server stops."""
        if not self.is_closing:
            self.handler.shutdown()
            self.update_reading()

    @property
    def idle_seconds(self) -> float:
        """For how long the client has not read what the application wrote; see WaitingClient."""
        return self.connections.unread_seconds(self)

    def evict(self, error: Overloaded) -> None:  # noqa: ARG002  # the client would not read it
        """Close the connection at once."""
        self.transport.abort()

    def displace(self, error: Overloaded) -> None:
        """Another client needs the slot."""
        if self._lingers:
            self.transport.abort()
        else:
            self.handler.displace(error)

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run the application in a task, for whose end the server waits when it stops."""
        tasks = self.server_state.tasks
        task = self.loop.create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return task

    def hand_over(self, handler: Handler, rest: memoryview) -> None:
        """Let another handler continue with the bytes behind those of the handshake."""
        self.handler = handler
        if rest:
            self._unparsed.appendleft(rest)

    def start_read_timeout(self) -> None:
        """A response is complete: the client has `answer_timeout_seconds` to read it."""
        if self.transport.get_write_buffer_size():
            self._slow_reader.start(self.transport)

    def stop_read_timeout(self) -> None:
        """A response begins: what is written from now on says nothing about how the last one was read."""
        if self._slow_reader.timer is not None and self.writable.is_set():
            self._slow_reader.stop()

    def refuse(self, response: bytes) -> None:
        """Write a response to a client that may still be sending, and close the connection once it was read."""
        if self.is_closing:
            return
        self.connections.release(self)
        self.transport.write(response)
        self.finish()

    def finish(self, linger_bytes: int = LINGER_BYTES) -> None:
        """Write nothing more, and discard what the client sends until it closes the connection, or so much was sent."""
        if self.is_closing:
            return
        self._unparsed.clear()
        if not self.transport.can_write_eof():
            self.close()
            return
        self._lingers, self._linger_bytes = True, linger_bytes
        self.connections.idle(self)
        self.transport.write_eof()
        self.update_reading()

    def close(self) -> None:
        """Close the connection once the client has read what was written."""
        self.transport.close()
        self._slow_reader.start(self.transport)
        self.update_reading()

    def update_reading(self) -> None:
        """Decide whether the socket is read, and which timer runs."""
        if self.phase is Phase.CLOSED:
            return
        needs, closing = self.handler.needs(), self.transport.is_closing()
        lingers, unparsed = self._lingers, self._unparsed
        if unparsed and needs.parses and not (self._parse_scheduled or lingers or closing):
            self._parse_scheduled = True
            self.loop.call_soon(self._parse)
        if not closing:
            reads = lingers or (not unparsed and needs.reads)
            if reads is not self._reads:
                self._reads = reads
                if reads:
                    self.transport.resume_reading()
                else:
                    self.transport.pause_reading()
            awaits = reads and not lingers and needs.awaits_client
            if awaits and not self.pace.is_idle:
                self.pace.wait()
                self.connections.await_client(self)
            elif self._awaits and not awaits:
                self.pace.receive(0)
                self.connections.serve(self)
            self._awaits = awaits
        phase = Phase.FLUSHING if closing else Phase.LINGERING if lingers else needs.phase
        if phase is not self.phase or (self._timer is None and phase is not Phase.SERVING):
            self._set_phase(phase)

    def _set_phase(self, phase: Phase) -> None:
        self.phase = phase
        if self._timer is not None:
            self._timer.cancel()
        seconds = None if phase is Phase.SERVING else self._seconds(phase)
        self._timer = None if seconds is None else self.loop.call_later(seconds, self._expire)

    def _seconds(self, phase: Phase) -> float | None:
        """How long a phase may last."""
        match phase:
            case Phase.REQUEST if self.connections.reserves(self):
                return RESERVE_SECONDS
            case Phase.REQUEST:
                return self.settings.upload_idle_timeout_seconds
            case Phase.IDLE:
                return KEEP_ALIVE_SECONDS
            case Phase.OPEN:
                return PING_SECONDS
            case Phase.CLOSING:
                return CLOSE_SECONDS
            case Phase.LINGERING:
                return LINGER_SECONDS
            case Phase.FLUSHING:
                return self.settings.answer_timeout_seconds
            case _:
                return None

    def _expire(self) -> None:
        self._timer = None
        match self.phase:
            case Phase.LINGERING:
                self.close()
            case Phase.FLUSHING:
                if not self.transport.get_write_buffer_size():  # otherwise the slow-reader timeout decides
                    self.transport.abort()
            case _:
                self.handler.expire()
        self.update_reading()

    def _parse(self) -> None:
        """Parse until everything is parsed, the handler takes no more, or other clients have waited long enough."""
        self._parse_scheduled = False
        unparsed, transport = self._unparsed, self.transport
        ends = time.perf_counter() + TIME_SLICE_SECONDS
        while unparsed and not self._lingers and not transport.is_closing() and self.handler.parses:
            data = unparsed.popleft()
            piece_bytes = self.handler.piece_bytes
            if len(data) > piece_bytes:
                unparsed.appendleft(data[piece_bytes:])
                data = data[:piece_bytes]
            self.handler.feed(data)
            if unparsed and time.perf_counter() > ends:
                break
        self.update_reading()


class SlowReaderTimeout:
    """Aborts a connection whose client reads less than STRETCH_BYTES within `seconds`.

    A shorter rest must have been read to its end.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        self._loop = loop
        self._seconds = seconds
        self.timer: asyncio.TimerHandle | None = None
        """None while it does not run."""

    def start(self, transport: asyncio.Transport) -> None:
        """Start the timer, unless it runs already or everything was read."""
        if self.timer is None and (nbytes := transport.get_write_buffer_size()):
            self.timer = self._loop.call_later(self._seconds, self._expire, transport, nbytes)

    def stop(self) -> None:
        """Stop the timer: everything was read, or the connection is closed."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def _expire(self, transport: asyncio.Transport, before_bytes: int) -> None:
        self.timer = None
        left_bytes = transport.get_write_buffer_size()
        if left_bytes and left_bytes > before_bytes - STRETCH_BYTES:
            metrics.CONNECTIONS_CLOSED.labels("unread").inc()
            transport.abort()
        else:
            self.start(transport)


def _address(name: Sequence[Any] | str | None) -> tuple[str, int | None] | None:
    if isinstance(name, tuple):
        return str(name[0]), int(name[1])
    return (name, None) if name and isinstance(name, str) else None
