"""One TCP connection from accept to close: its timer, whether its socket is read, and its parser."""

import asyncio
import http
import time
import uuid
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from enum import Enum
from typing import Any, NamedTuple, Protocol

from pydantic_core import to_json
from uvicorn import Config
from uvicorn.server import ServerState

from gateway import metrics
from gateway.errors import PROBLEM_MEDIA_TYPE, GatewayError, Overloaded, problem_document
from gateway.hooks import Runtime
from gateway.limits.pools import IDLE_SECONDS, MIN_UPLOAD_BYTES_PER_SECOND, Pace
from gateway.server.connections import CONNECTIONS, RESERVE_SECONDS, Connections, Wait
from gateway.values.clients import client_of

KEEP_ALIVE_SECONDS = 75.0
"""How long a connection may be idle after a response."""
LINGER_SECONDS = 2.0
"""How long a refused client may continue to send. Closing a connection with unread bytes resets it, and a reset may
discard the response before the client has read it."""
LINGER_BYTES = 2**20
"""How much a refused client may send meanwhile."""
TURN_SECONDS = 0.0002
"""Time after which a connection lets others parse."""
LEAST_PIECE_BYTES, FIRST_PIECE_BYTES, MOST_PIECE_BYTES = 64, 512, 4 * 1024
"""Bytes that are parsed between two readings of the clock: more while pieces are cheap, half after one that takes a
turn. A byte of the smallest frames and chunks costs hundreds of times as much as a byte of large ones."""
STRETCH_BYTES = 64 * 1024
"""Bytes that a client must read within `answer_timeout_seconds`, if as many were written."""
_STATUS_LINES = {status.value: b"HTTP/1.1 %d %b\r\n" % (status, status.phrase.encode()) for status in http.HTTPStatus}


class SlowReaderTimeout:
    """Aborts a connection whose client reads less than STRETCH_BYTES within `seconds`.

    A shorter rest must have been read to its end.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport, seconds: float) -> None:
        self._loop, self._transport = loop, transport
        self._seconds = seconds
        self.timer: asyncio.TimerHandle | None = None
        """None while it does not run."""

    def start(self) -> None:
        """Start the timer, unless it runs already or everything was read."""
        if self.timer is None and (nbytes := self._transport.get_write_buffer_size()):
            self.timer = self._loop.call_later(self._seconds, self._expire, nbytes)

    def stop(self) -> None:
        """Stop the timer: everything was read, or the connection is closed."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def _expire(self, before_bytes: int) -> None:
        self.timer = None
        if self._transport.get_write_buffer_size() > max(0, before_bytes - STRETCH_BYTES):
            metrics.CONNECTIONS_CLOSED.labels("unread").inc()
            self._transport.abort()
        else:
            self.start()


class Phase(Enum):
    """The event that a connection waits for. In SERVING an ASGI task ends it, in the others a timer."""

    REQUEST = "for the headers of a request, or for the rest of a body that the application did not read"
    IDLE = "for another request"
    SERVING = "for the application"
    OPEN = "for a WebSocket, whose protocol has its own timers"
    LINGERING = "for a refused client to read its response"
    CLOSED = "for nothing, or for the client to read the last bytes"


class Needs(NamedTuple):
    """The next events that a protocol waits for."""

    phase: Phase
    """One of REQUEST, IDLE, SERVING and OPEN."""
    reads: bool
    """Whether the socket may be read while nothing that was received waits to be parsed."""
    wait: Wait | None
    """What the client has to send; None while the application works."""


class Handler(Protocol):
    """Parses a connection's bytes; after the handshake of a WebSocket, another handler replaces it."""

    @property
    def cheap_bytes(self) -> int:
        """How many of the next bytes are cheap to parse, such as a body of announced length."""

    @property
    def parses(self) -> bool:
        """Whether `feed` may be called."""

    def needs(self) -> Needs:
        """The events that the protocol waits for now."""
        ...

    def feed(self, piece: memoryview) -> None:
        """Parse some bytes."""

    def expire(self) -> None:
        """The phase has lasted too long."""

    def displace(self, error: Overloaded) -> None:
        """End the connection with this error, since another client needs its slot."""

    def shutdown(self) -> None:
        """The server stops: close idle connections, and let the application finish its requests."""

    def lost(self) -> None:
        """The connection is closed."""


ProtocolOf = Callable[["Connection"], Any]
"""Makes the handler of a WebSocket, which also has `connection_made` and gets the handshake by `data_received`."""


class Connection(asyncio.Protocol):
    """Owns a connection: its transport, its timer, and the bytes that were received and not parsed yet.

    A handler parses and runs the application. `update_reading` alone decides whether the socket is read and which timer
    runs; it is called after every event, and by the handler when its phase may have changed.
    """

    client: str
    """Its address; turns to parse alternate between clients."""
    handler: Handler
    transport: asyncio.Transport
    slow_reader: SlowReaderTimeout
    addresses: dict[str, tuple[str, int | None] | None]
    """As an ASGI scope has them."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        first_handler: Callable[["Connection"], Handler],
    ) -> None:
        self._first_handler = first_handler
        self.loop = _loop or asyncio.get_running_loop()
        self.config = config
        self.app = config.loaded_app
        self.asgi_version: str = config.asgi_version
        self.root_path = config.root_path
        self.server_state = server_state
        self.app_state = app_state
        self.runtime: Runtime = app_state["runtime"]
        self.settings = self.runtime.settings
        self.connections: Connections = app_state[CONNECTIONS]
        self.phase = Phase.REQUEST
        self.writable = asyncio.Event()
        self.writable.set()
        self.pace = Pace(
            min_bytes_per_second=MIN_UPLOAD_BYTES_PER_SECOND,
            grace_seconds=self.settings.upload_idle_timeout_seconds,
            now=self.loop.time,
        )
        self._unparsed: deque[memoryview] = deque()
        self._parse_scheduled = False
        self._piece_bytes = FIRST_PIECE_BYTES
        self._used_turn = False
        """Whether bytes were left at the end of the last turn."""
        self._wait: Wait | None = None
        self._unread_since: float | None = None
        self.lingers = False
        self._linger_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_watched(self) -> bool:
        """Whether a timer, or the task of a request or stream, ends the phase."""
        return self._timer is not None or self.phase in (Phase.SERVING, Phase.OPEN)

    @property
    def is_closing(self) -> bool:
        """Whether nothing more is parsed or written."""
        return self.lingers or self.transport.is_closing()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # always of this kind
        """Take a slot, and begin to read."""
        self.transport = transport
        self.slow_reader = SlowReaderTimeout(self.loop, transport, self.settings.answer_timeout_seconds)
        self.addresses = {
            "server": _address(transport.get_extra_info("sockname")),
            "client": _address(transport.get_extra_info("peername")),
        }
        self.client = client_of("", peer[0]) if (peer := self.addresses["client"]) else ""
        self.handler = self._first_handler(self)
        self.server_state.connections.add(self)  # type: ignore[arg-type]  # uvicorn lists its own classes
        self.connections.add(self)
        if (seconds := self.connections.parsing.wait_seconds(self.client)) > 0:
            self._parse_scheduled = True
            self.loop.call_later(seconds, self._parse)
        self.update_reading()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # asyncio's
        """Stop the timers, release the slot, and notify the application."""
        self.server_state.connections.discard(self)
        self.connections.remove(self)
        self.slow_reader.stop()
        self._unparsed.clear()
        self.writable.set()  # nothing more is written, so no task may wait for it
        self._set_phase(Phase.CLOSED)
        self.handler.lost()
        del self.handler  # they refer to each other, and full garbage collections are long

    def data_received(self, data: bytes) -> None:
        """Parse now if other connections have left time for it, or later."""
        if self.lingers:
            self._linger_bytes -= len(data)
            if self._linger_bytes < 0:
                self.close()
            else:  # to receive costs time as well
                self._parse_scheduled = True
                self.connections.parsing.enqueue(self, self._parse, backlog=True)
                self.update_reading()
            return
        self.pace.receive(len(data))
        self._unparsed.append(memoryview(data))
        if self._parse_scheduled or not self.connections.parsing.run(self._parse):
            self.update_reading()

    @property
    def unparsed_bytes(self) -> int:
        """Bytes that were received and not parsed yet."""
        return sum(map(len, self._unparsed))

    def pause_writing(self) -> None:
        """The client reads more slowly than the application writes."""
        self.writable.clear()
        self._unread_since = self.loop.time()
        self.slow_reader.start()
        self.update_reading()

    def resume_writing(self) -> None:
        """The client has caught up."""
        self.writable.set()
        self._unread_since = None
        self.slow_reader.stop()
        self.update_reading()

    def shutdown(self) -> None:
        """The server stops."""
        if not self.is_closing:
            self.handler.shutdown()
            self.update_reading()

    @property
    def is_idle(self) -> bool:
        """Whether the client has not read the application's output for IDLE_SECONDS; see PoolClient."""
        return self._unread_seconds >= IDLE_SECONDS

    def eviction_score(self, held: int) -> float:  # noqa: ARG002  # the amount does not matter
        """For how long the client has not read."""
        return self._unread_seconds

    @property
    def _unread_seconds(self) -> float:
        return 0.0 if self._unread_since is None else self.loop.time() - self._unread_since

    def evict(self, error: Overloaded) -> None:  # noqa: ARG002  # the client would not read it
        """Close the connection without waiting for the client."""
        self.transport.abort()

    def displace(self, error: Overloaded) -> None:
        """Another client needs the slot."""
        if self.lingers:
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

    def hand_over(self, protocol_of: ProtocolOf, handshake: bytes, rest: memoryview) -> None:
        """Let the protocol of a WebSocket continue with its handshake and the bytes behind it."""
        self._set_phase(Phase.OPEN)
        self.server_state.connections.discard(self)  # the protocol takes its place
        if rest:
            self._unparsed.appendleft(rest)
        self.handler = protocol = protocol_of(self)
        protocol.connection_made(self.transport)
        protocol.data_received(handshake)

    def refuse(self, error: GatewayError) -> None:
        """Write an error's response as the last one; see `finish_with`."""
        self.finish_with(error_response(error))

    def finish_with(self, response: bytes) -> None:
        """Write a response to a client that may still be sending, and close the connection once it was read."""
        if self.is_closing:
            return
        self.connections.release(self)
        self.transport.write(response)
        self.finish()

    def finish(self, linger_bytes: int = LINGER_BYTES) -> None:
        """Write nothing more, and discard the client's bytes until it closes or has sent `linger_bytes`."""
        if self.is_closing:
            return
        self._unparsed.clear()
        self.connections.parsing.refuse(self.client)
        if not self.transport.can_write_eof():
            self.close()
            return
        self.lingers, self._linger_bytes = True, linger_bytes
        self.transport.write_eof()
        self.update_reading()

    def close(self) -> None:
        """Close the connection once the client has read everything."""
        self.transport.close()
        self.slow_reader.start()
        self.update_reading()

    def update_reading(self) -> None:
        """Decide whether the socket is read, when the rest is parsed, which timer runs, and what the client must do."""
        if self.phase is Phase.CLOSED:
            return
        if self.transport.is_closing():
            if self.phase is not Phase.OPEN:
                self._set_phase(Phase.CLOSED)
            return
        needs, unparsed, lingers = self.handler.needs(), self._unparsed, self.lingers
        if unparsed and not (self._parse_scheduled or lingers) and self.handler.parses:
            self._parse_scheduled = True
            self.connections.parsing.enqueue(self, self._parse, backlog=self._used_turn)
        reads = not self._parse_scheduled and (lingers or (not unparsed and needs.reads))
        if reads is not self.transport.is_reading():
            if reads:
                self.transport.resume_reading()
            else:
                self.transport.pause_reading()
        pace, wait = self.pace, needs.wait
        awaits = reads and wait is Wait.MORE and not lingers
        begins = awaits and pace.waiting_since is None
        if begins:
            pace.wait()
        elif not awaits and pace.waiting_since is not None:
            pace.receive(0)
        if self._unread_since is not None:
            wait = Wait.READING
        elif lingers:
            wait = Wait.NEXT
        elif not awaits and wait is Wait.MORE:
            wait = None
        if begins or wait is not self._wait:
            self._wait = wait
            self.connections.wait(self, wait)
        if self.phase is Phase.OPEN:
            return
        phase = Phase.LINGERING if lingers else needs.phase
        if phase is not self.phase or (self._timer is None and phase is not Phase.SERVING):
            self._set_phase(phase)

    def _set_phase(self, phase: Phase) -> None:
        """Begin a phase, and start its timer; an ASGI task ends SERVING."""
        self.phase = phase
        if self._timer is not None:
            self._timer.cancel()
        match phase:
            case Phase.SERVING | Phase.OPEN | Phase.CLOSED:
                self._timer = None
                return
            case Phase.IDLE:
                seconds = KEEP_ALIVE_SECONDS
            case Phase.REQUEST if self.connections.reserves(self):
                seconds = RESERVE_SECONDS
            case Phase.REQUEST:
                seconds = self.settings.upload_idle_timeout_seconds
            case Phase.LINGERING:
                seconds = LINGER_SECONDS
        self._timer = self.loop.call_later(seconds, self._expire)

    def _expire(self) -> None:
        self._timer = None
        if self.phase is Phase.LINGERING:
            self.close()
        else:
            self.handler.expire()
        self.update_reading()

    def _parse(self) -> None:
        """Parse until everything is parsed, the handler takes no more, or the turn is over."""
        self._parse_scheduled = self._used_turn = False
        unparsed, transport = self._unparsed, self.transport
        now = time.perf_counter()
        ends = now + TURN_SECONDS
        while unparsed and not self.lingers and not transport.is_closing():
            data = unparsed.popleft()
            piece_bytes = max(self._piece_bytes, self.handler.cheap_bytes)
            if len(data) > piece_bytes:
                unparsed.appendleft(data[piece_bytes:])
                data = data[:piece_bytes]
            self.handler.feed(data)
            began, now = now, time.perf_counter()
            if now - began > TURN_SECONDS:
                self._piece_bytes = max(self._piece_bytes // 2, LEAST_PIECE_BYTES)
            elif self._piece_bytes < MOST_PIECE_BYTES:
                self._piece_bytes += len(data) // 8
            if now > ends:
                self._used_turn = bool(unparsed)
                break
            if unparsed and not self.handler.parses:
                break
        self.update_reading()


def _address(name: Sequence[Any] | str | None) -> tuple[str, int | None] | None:
    if isinstance(name, tuple):
        return str(name[0]), int(name[1])
    return (name, None) if name and isinstance(name, str) else None


def head(status: int, headers: Sequence[Sequence[bytes]]) -> bytes:
    """The status line and the headers, without the empty line behind them; ASGI allows headers that are lists.

    Raises ValueError for a header with a line break or a NUL, which would begin another header or response.
    """
    text = b"".join(map(b"%b: %b\r\n".__mod__, map(tuple, headers)))
    if text.count(b"\n") != len(headers) or text.count(b"\r") != len(headers) or b"\0" in text:
        raise ValueError("a response header contains a line break or a NUL")
    return (_STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status) + text


def error_response(error: GatewayError) -> bytes:
    """The response to bytes that are not a request, and to a request that is refused before the application gets it."""
    headers = [(b"content-type", PROBLEM_MEDIA_TYPE.encode())]
    if isinstance(error, Overloaded):
        headers.append((b"retry-after", b"1"))
    body = to_json(problem_document(error, uuid.uuid4().hex))
    length = b"content-length: %d\r\nconnection: close\r\n\r\n" % len(body)
    return head(int(error.status), headers) + length + body
