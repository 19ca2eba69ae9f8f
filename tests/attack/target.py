"""One way to attack: a case, and the service as its target, over HTTP and WebSockets."""

import contextlib
import itertools
import json
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from bench.http_load import BOUNDARY, form

SECONDS = 60.0
MAX_FILES = 1_000
"""Files of one request, as the gateway's default."""
PART_BYTES = 150
"""The most bytes that a file adds to a form beyond its data."""
MULTIPART = f"multipart/form-data; boundary={BOUNDARY}"


@dataclass(frozen=True, slots=True)
class Target:
    """A gateway at an address, and the size of the attacks on it.

    `max_connections` and `max_streams` are those of one of its `workers`; an attack that keeps them does so for
    `hold_seconds`. `clients` is the number of connections of an attack that does not keep them. `folded` makes each
    form as large as one request may be, by repeating its files.
    """

    host: str
    port: int
    nbytes: int = 20_000_000
    workers: int = 1
    max_connections: int = 1_000
    max_streams: int = 64
    hold_seconds: float = 6.0
    clients: int = 400
    folded: bool = False

    def connect(self, port: int = 0, *, receive_bytes: int = 0) -> socket.socket:
        """Open a connection; `receive_bytes` limits what it takes without a read."""
        connection = socket.socket()
        connection.settimeout(SECONDS)
        if receive_bytes:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        try:
            connection.connect((self.host, port or self.port))
        except OSError:
            connection.close()
            raise
        return connection

    def open(self, count: int, data: bytes | Callable[[], bytes] = b"", **options: int) -> list[socket.socket]:
        """Connections on which the bytes were sent, as far as the service accepted and took them."""
        opened = []
        for _ in range(count):
            with contextlib.suppress(OSError):
                opened.append(connection := self.connect(**options))
                connection.settimeout(2.0)
                connection.sendall(data if isinstance(data, bytes) else data())
        return opened

    def head(self, line: str, *headers: str) -> bytes:
        """The head of a request."""
        return "\r\n".join([f"{line} HTTP/1.1", "Host: x", *headers, "\r\n"]).encode("latin-1")

    def raw(self, pieces: Iterable[bytes]) -> str:
        """Send bytes as they are; returns a summary of the first response."""
        with self.connect() as connection:
            with contextlib.suppress(OSError):  # the service may refuse it before all is sent
                for piece in pieces:
                    connection.sendall(piece)
            return summary(receive(connection))

    def post(self, path: str, body: bytes | Iterable[bytes], content_type: str, *headers: str) -> str:
        """Send a request, its body in chunks unless it is bytes; returns a summary of the response."""
        whole = isinstance(body, bytes)
        framing = f"Content-Length: {len(body)}" if isinstance(body, bytes) else "Transfer-Encoding: chunked"
        head = self.head(f"POST {path}", f"Content-Type: {content_type}", "Connection: close", *headers, framing)
        pieces: Iterable[bytes] = [body] if isinstance(body, bytes) else body
        return self.raw(itertools.chain([head], pieces if whole else chunked(pieces)))

    def post_files(self, files: Iterable[bytes], query: str = "", name: str = "x.jpg", *headers: str) -> str:
        """Send files in one form."""
        sent = list(_as_many_as_fit(list(files), self.nbytes) if self.folded else files)
        return self.post(f"/predict{query}", b"".join(form(sent, name)), MULTIPART, *headers)


Send = Callable[[Target], str]
"""Sends an attack and returns a summary of the answer."""


@dataclass(frozen=True, slots=True)
class Case:
    """An attack: its name, what it sends, and how."""

    name: str
    what: str
    send: Send
    folded: bool = False
    """Whether its files are repeated up to the limits of one request."""


def cases(*rows: tuple[str, str, Send]) -> list[Case]:
    """Cases by name, what they send, and how."""
    return [Case(*row) for row in rows]


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
        while time.monotonic() <= deadline and not _is_whole(answer):
            part = connection.recv(1 << 16)
            if not part:
                break
            answer += part
    return bytes(answer)


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


def counted(answers: Iterable[object]) -> str:
    """Answers in short: each with how often it was given."""
    counts = Counter(map(str, answers))
    return ", ".join(f"{count} × {answer}" for answer, count in counts.most_common())


def _as_many_as_fit(files: list[bytes], nbytes: int) -> Iterator[bytes]:
    """The files repeatedly, at least once, within `nbytes` and MAX_FILES."""
    left = nbytes
    for count, data in enumerate(itertools.cycle(files)):
        left -= len(data) + PART_BYTES
        if count >= len(files) and (left < 0 or count >= MAX_FILES):
            return
        yield data


def _is_whole(answer: bytes | bytearray) -> bool:
    head, separator, body = answer.partition(b"\r\n\r\n")
    for line in head.lower().split(b"\r\n") if separator else ():
        if line.startswith(b"content-length:"):
            return len(body) >= int(line.partition(b":")[2])
    return bool(separator) and head.startswith(b"HTTP/1.1 101 ")
