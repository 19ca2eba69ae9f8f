"""What a connection and the protocols that it speaks know of each other."""

import asyncio
from collections.abc import Callable, Coroutine
from enum import Enum
from typing import Any, NamedTuple, Protocol

from starlette.types import ASGIApp
from uvicorn import Config
from uvicorn.server import ServerState

from gateway import metrics
from gateway.errors import GatewayError, Overloaded
from gateway.limits.connections import Connections, Member
from gateway.limits.pools import Pace
from gateway.settings import Settings

STRETCH_BYTES = 64 * 1024
"""What a client must read of what was written for it within `answer_timeout_seconds`."""


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


class Phase(Enum):
    """What a connection waits for. In SERVING an ASGI task runs, in every other phase a timer."""

    REQUEST = "for the headers of a request, or for the rest of a body that the application did not read"
    IDLE = "for another request"
    SERVING = "for the application"
    OPEN = "for a WebSocket, whose protocol has its own timers"
    LINGERING = "for a refused client to read its response"
    FLUSHING = "for the client to read the last bytes"
    CLOSED = "for nothing"


class Needs(NamedTuple):
    """What a protocol waits for."""

    phase: Phase
    """One of REQUEST, IDLE, SERVING and OPEN."""
    parses: bool
    """Whether it takes more bytes."""
    reads: bool
    """Whether the socket may be read while nothing that was received waits to be parsed."""
    awaits_client: bool
    """Whether the client has to send the rest of a request."""


class Handler(Protocol):
    """What parses a connection's bytes; after the handshake of a WebSocket, another one takes its place."""

    @property
    def cheap_bytes(self) -> int:
        """How many of the next bytes cost next to nothing to parse, as those of a body of announced length."""

    @property
    def runs(self) -> bool:
        """Whether an ASGI task runs."""

    @property
    def parses(self) -> bool:
        """Whether `feed` may be called."""

    def needs(self) -> Needs:
        """What the protocol waits for at this moment."""
        ...

    def feed(self, piece: memoryview) -> None:
        """Parse some bytes."""

    def expire(self) -> None:
        """The phase has lasted too long."""

    def displace(self, error: Overloaded) -> None:
        """End the connection with this error, since another client needs its slot."""

    def shutdown(self) -> None:
        """The server stops: close what is idle, and let the application finish what it has begun."""

    def lost(self) -> None:
        """The connection is closed."""


class ServedConnection(Member, Protocol):
    """What a handler sees of its connection."""

    app: ASGIApp
    config: Config
    loop: asyncio.AbstractEventLoop
    app_state: dict[str, Any]
    server_state: ServerState
    settings: Settings
    connections: Connections
    pace: Pace
    asgi_version: str
    root_path: str
    addresses: dict[str, tuple[str, int | None] | None]
    """As an ASGI scope has them."""
    transport: asyncio.Transport
    writable: asyncio.Event
    """Whether the client reads what is written for it."""
    lingers: bool
    """Whether the last response was written, to a client that may go on sending."""
    slow_reader: SlowReaderTimeout
    """Runs while the client has a response to read."""

    @property
    def is_closing(self) -> bool:
        """Whether nothing more is parsed or written."""

    @property
    def unparsed_bytes(self) -> int:
        """Bytes that were received and not parsed yet."""
        ...

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run the application in a task, for whose end the server waits when it stops."""
        ...

    def hand_over(self, protocol_of: "ProtocolOf", handshake: bytes, rest: memoryview) -> None:
        """Let the protocol of a WebSocket continue with its handshake and the bytes behind it."""

    def update_reading(self) -> None:
        """Decide again whether the socket is read and which timer runs, after the handler's state has changed."""

    def refuse(self, error: GatewayError) -> None:
        """Write an error's response as the last one; see `finish_with`."""

    def finish_with(self, response: bytes) -> None:
        """Write a response to a client that may still be sending, and close the connection once it was read."""

    def finish(self, linger_bytes: int = ...) -> None:
        """Write nothing more, and discard what the client sends until it closes the connection, or so much was sent."""

    def close(self) -> None:
        """Close the connection once the client has read what was written."""


ProtocolOf = Callable[[ServedConnection], Any]
"""Makes the handler of a WebSocket, which also has `connection_made` and gets the handshake by `data_received`."""
