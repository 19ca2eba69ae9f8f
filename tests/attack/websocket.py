"""A WebSocket client (RFC 6455) that can send invalid frames and handshakes, which libraries refuse to send."""

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator
from types import TracebackType

from tests.attack.target import Target

CONTINUATION, TEXT, BINARY, CLOSE, PING = 0, 1, 2, 8, 9
KEY = "dGhlIHNhbXBsZSBub25jZQ=="
NO_CODE = 1005
"""A close frame without a code (RFC 6455, section 7.4.1)."""


def handshake(target: Target, path: str = "/stream", *headers: str) -> bytes:
    """A request that opens a WebSocket; `headers` follow the required ones."""
    upgrade = ("Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {KEY}")
    return target.head(f"GET {path}", *upgrade, *headers)


def frame(kind: int, data: bytes, *, final: bool = True) -> bytes:
    """A client's frame with a mask of zeros, which leaves the data as they are."""
    if len(data) < 126:
        length = struct.pack(">B", 0x80 | len(data))
    elif len(data) < 1 << 16:
        length = struct.pack(">BH", 0x80 | 126, len(data))
    else:
        length = struct.pack(">BQ", 0x80 | 127, len(data))
    return struct.pack(">B", kind | (0x80 if final else 0)) + length + bytes(4) + data


class Stream:
    """A stream that is open or was refused (`status`); a thread reads what the service sends."""

    def __init__(self, target: Target, path: str = "/stream", *headers: str, reads: bool = True) -> None:
        self.connection = target.connect()
        self.close_code = 0
        """The code with which the service closed the stream, NO_CODE without one, 0 while it is open."""
        self.messages = 0
        self.last = b""
        """The last message."""
        self._left = False
        self._lock = threading.Condition()
        with contextlib.suppress(OSError):
            self.connection.sendall(handshake(target, path, *headers))
        head, self._rest = _head(self.connection)
        self.status = int(head[9:12]) if head.startswith(b"HTTP/1.1 ") else 0
        self.ended = self.status != 101
        self._reader = threading.Thread(target=self._read, daemon=True)
        if reads and not self.ended:
            self._reader.start()

    def send(self, kind: int, data: bytes, *, final: bool = True) -> bool:
        """Send a frame; returns whether the service still accepted it."""
        return self.send_raw(frame(kind, data, final=final))

    def send_raw(self, data: bytes) -> bool:
        """Send bytes; returns whether the service still accepted them."""
        try:
            self.connection.sendall(data)
        except OSError:
            return False
        return not self.ended

    def wait(self, seconds: float, messages: int = 0) -> bool:
        """Wait until the stream has ended or `messages` have arrived; returns whether either happened in time."""
        with self._lock:
            return self._lock.wait_for(lambda: self.ended or (messages > 0 and self.messages >= messages), seconds)

    def __str__(self) -> str:
        """The status of the handshake, and the close code."""
        state = "closed" if self.ended and self.status == 101 else "" if self.status == 101 else "refused"
        return f"{self.status or 'none'} {self.close_code or state}".strip()

    def __enter__(self) -> "Stream":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._left = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        if self._reader.ident is not None:
            self._reader.join()
        self.connection.close()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            for kind, data in _frames(self.connection, self._rest):
                with self._lock:
                    if kind == CLOSE:
                        self.close_code = int.from_bytes(data[:2], "big") if data else NO_CODE
                        break
                    if kind == TEXT:
                        self.messages += 1
                        self.last = data
                    self._lock.notify_all()
        with self._lock:
            if not self._left:  # otherwise this client ended it
                self.ended = True
            self._lock.notify_all()


def _head(connection: socket.socket, seconds: float = 10.0) -> tuple[bytes, bytes]:
    """The head of a response, and the bytes after it."""
    received = b""
    deadline = time.monotonic() + seconds
    with contextlib.suppress(OSError):
        while b"\r\n\r\n" not in received and time.monotonic() < deadline:
            connection.settimeout(max(0.01, deadline - time.monotonic()))
            part = connection.recv(1 << 16)
            if not part:
                break
            received += part
    connection.settimeout(60.0)
    head, _, rest = received.partition(b"\r\n\r\n")
    return head, rest


def _frames(connection: socket.socket, received: bytes) -> Iterator[tuple[int, bytes]]:
    """The frames that a service sends, until it closes the connection."""
    buffer = bytearray(received)
    while True:
        while (found := _first(buffer)) is not None:
            kind, start, end = found
            yield kind, bytes(buffer[start:end])
            del buffer[:end]
        part = connection.recv(1 << 16)
        if not part:
            return
        buffer += part


def _first(buffer: bytearray) -> tuple[int, int, int] | None:
    """Kind, start and end of the first frame's data, if the frame is whole."""
    if len(buffer) < 2:
        return None
    start, length = 2, buffer[1] & 0x7F
    if length >= 126:
        start = 4 if length == 126 else 10
        length = int.from_bytes(buffer[2:start], "big")
    if len(buffer) < start or len(buffer) < start + length:
        return None
    return buffer[0] & 0x0F, start, start + length
