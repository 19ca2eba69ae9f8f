"""What a connection and the protocols that it speaks know of each other."""

from enum import Enum
from typing import Protocol

from gateway.errors import Overloaded


class Phase(Enum):
    """What a connection waits for. In SERVING an ASGI task runs, in every other phase a timer; in OPEN both do."""

    REQUEST = "for the headers of a request, or for the rest of a body that the application did not read"
    IDLE = "for another request"
    SERVING = "for the application"
    OPEN = "for a WebSocket's next message"
    CLOSING = "for the close frame of a WebSocket's client"
    LINGERING = "for a refused client to read its response"
    FLUSHING = "for the client to read the last bytes"
    CLOSED = "for nothing"


class Handler(Protocol):
    """What a connection speaks: HTTP/1.1, and WebSocket after a handshake."""

    @property
    def piece_bytes(self) -> int:
        """How many bytes are parsed between two looks at the clock: no more than take some milliseconds."""

    @property
    def phase(self) -> Phase:
        """One of REQUEST, IDLE, SERVING, OPEN and CLOSING."""

    @property
    def runs(self) -> bool:
        """Whether an ASGI task runs."""

    @property
    def parses(self) -> bool:
        """Whether `feed` may be called."""

    @property
    def reads(self) -> bool:
        """Whether the socket may be read while nothing that was received waits to be parsed."""

    @property
    def awaits_client(self) -> bool:
        """Whether the client has to send the rest of a request, or the next message."""

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
