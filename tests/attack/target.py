"""The attacked service: requests over raw sockets, and their answers in short."""

import contextlib
import itertools
import json
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from bench.http_load import BOUNDARY, form

SECONDS = 60.0
MULTIPART = f"multipart/form-data; boundary={BOUNDARY}"


@dataclass(frozen=True, slots=True)
class Target:
    """A gateway on this machine, and the approximate number of bytes of an attack on it."""

    port: int
    nbytes: int = 4_000_000

    def connect(self, *, receive_bytes: int = 0) -> socket.socket:
        """Open a connection; `receive_bytes` limits what it takes without a read."""
        connection = socket.socket()
        connection.settimeout(SECONDS)
        if receive_bytes:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        try:
            connection.connect(("127.0.0.1", self.port))
        except OSError:
            connection.close()
            raise
        return connection

    def open(self, count: int, data: bytes, **options: int) -> list[socket.socket]:
        """Connections on which the bytes were sent, as far as the service accepted and took them."""
        opened = []
        for _ in range(count):
            with contextlib.suppress(OSError):
                opened.append(connection := self.connect(**options))
                connection.settimeout(2.0)
                connection.sendall(data)
        return opened

    def raw(self, pieces: Iterable[bytes]) -> str:
        """Send bytes as they are; returns a summary of the first response."""
        with self.connect() as connection:
            with contextlib.suppress(OSError):  # the service may refuse it before all is sent
                for piece in pieces:
                    connection.sendall(piece)
            return summary(receive(connection))

    def post(self, path: str, body: bytes | Iterable[bytes], content_type: str) -> str:
        """Send a request, its body in chunks unless it is bytes; returns a summary of the response."""
        if isinstance(body, bytes):
            framing, pieces = f"Content-Length: {len(body)}", iter([body])
        else:
            framing, pieces = "Transfer-Encoding: chunked", chunked(body)
        return self.raw(
            itertools.chain([head(f"POST {path}", f"Content-Type: {content_type}", CLOSE, framing)], pieces)
        )

    def post_files(self, files: Iterable[bytes], query: str = "", name: str = "x.jpg") -> str:
        """Send files in one form."""
        return self.post(f"/predict{query}", b"".join(form(files, name)), MULTIPART)


Send = Callable[[Target], object]
CLOSE = "Connection: close"


def head(line: str, *headers: str) -> bytes:
    return "\r\n".join([f"{line} HTTP/1.1", "Host: x", *headers, "\r\n"]).encode("latin-1")


def chunked(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Chunked transfer coding (RFC 9112, section 7.1)."""
    for piece in pieces:
        yield b"%x\r\n%b\r\n" % (len(piece), piece)
    yield b"0\r\n\r\n"


def repeated(unit: bytes, nbytes: int, piece_bytes: int = 1 << 16) -> Iterator[bytes]:
    """About `nbytes` of a unit, in pieces."""
    piece = unit * max(1, piece_bytes // len(unit))
    for _ in range(max(1, nbytes // len(piece))):
        yield piece


def receive(connection: socket.socket, seconds: float = SECONDS) -> bytes:
    """Read until the other side closes, a response is complete, or the time is over."""
    answer = bytearray()
    deadline = time.monotonic() + seconds
    with contextlib.suppress(OSError):
        while time.monotonic() <= deadline and not is_whole(answer):
            part = connection.recv(1 << 16)
            if not part:
                break
            answer += part
    return bytes(answer)


def is_whole(answer: bytes | bytearray) -> bool:
    """Whether a response is complete, or the head of a stream."""
    head, separator, body = answer.partition(b"\r\n\r\n")
    for line in head.lower().split(b"\r\n") if separator else ():
        if line.startswith(b"content-length:"):
            return len(body) >= int(line.partition(b":")[2])
    return bool(separator) and head.startswith(b"HTTP/1.1 101 ")


def summary(answer: bytes) -> str:
    """A response in short: its status, and the codes of its errors."""
    if not answer.startswith(b"HTTP/1.1 "):
        return "closed" if not answer else "no HTTP"
    head, _, body = answer.partition(b"\r\n\r\n")
    status = head[9:12].decode()
    try:
        content = json.loads(body)
    except ValueError:
        return status
    if not isinstance(content, dict):
        return status
    results = content.get("results") or []
    codes = sorted({result["error"]["code"] if result["error"] else "ok" for result in results})
    return f"{status} {', '.join(codes) or content.get('code') or ''}".strip()
