"""One way to attack: a case, and the service as its target, over HTTP, WebSockets and gRPC."""

import contextlib
import itertools
import json
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from bench.attack.http2 import RawClient
from bench.http_load import BOUNDARY, form

SECONDS = 60.0
MAX_FILES = 1_000
"""Files of one request, as the gateway's default."""
SLOW_CODECS = (".avif", ".heic", ".jp2", ".mp4")
"""Suffixes of files with a higher allowance for each byte, as in the gateway's account."""
PART_BYTES = 150
"""The most bytes that a file adds to a form beyond its data."""
MULTIPART = f"multipart/form-data; boundary={BOUNDARY}"


class PromiseBroken(Exception):
    """The service broke one of its promises; the message has the details."""


@dataclass(slots=True)
class Traffic:
    """Counts what an attack sent: connections, requests, streams among them, bytes, and files.

    `slow_bytes` are those of files in SLOW_CODECS.
    """

    connections: int = 0
    requests: int = 0
    streams: int = 0
    nbytes: int = 0
    files: int = 0
    slow_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Target:
    """A gateway at an address, and the size of the attacks on it.

    `max_connections` and `max_streams` are those of one of its `workers`; an attack that keeps them does so for
    `hold_seconds`. `clients` is the number of connections of an attack that does not keep them. `key` is an API key of
    the attacker where the service needs one. `folded` makes each form as large as one request may be, by repeating its
    files.
    """

    host: str
    port: int
    grpc_port: int = 0
    nbytes: int = 20_000_000
    workers: int = 1
    max_connections: int = 1_000
    max_streams: int = 64
    hold_seconds: float = 6.0
    clients: int = 400
    key: str = ""
    folded: bool = False
    traffic: Traffic = field(default_factory=Traffic)

    def connect(self, port: int = 0, *, receive_bytes: int = 0) -> socket.socket:
        """Open a connection that counts the bytes it sends; `receive_bytes` limits what it takes without a read."""
        connection = CountingSocket(self.traffic)
        self.traffic.connections += 1
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

    @contextmanager
    def http2(self, *, window: int = 65_535) -> Iterator[RawClient]:
        """Open a connection to the port for gRPC. With `window=0` the client reads no response."""
        with self.connect(self.grpc_port) as connection:
            client = RawClient(connection, window=window, key=self.key)
            try:
                yield client
            finally:
                self.traffic.requests += client.calls

    def head(self, line: str, *headers: str) -> bytes:
        """The head of a request, with the attacker's API key."""
        self.traffic.requests += 1
        key = [f"X-API-Key: {self.key}"] if self.key else []
        return "\r\n".join([f"{line} HTTP/1.1", "Host: x", *key, *headers, "\r\n"]).encode("latin-1")

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
        self.traffic.files += len(sent)
        self.traffic.slow_bytes += sum(map(len, sent)) if name.endswith(SLOW_CODECS) else 0
        return self.post(f"/predict{query}", b"".join(form(sent, name)), MULTIPART, *headers)


class CountingSocket(socket.socket):
    """A TCP connection that adds what it sends to the attack's traffic."""

    def __init__(self, traffic: Traffic) -> None:
        super().__init__(socket.AF_INET, socket.SOCK_STREAM)
        self._traffic = traffic

    def sendall(self, data: bytes, flags: int = 0) -> None:  # type: ignore[override]  # bytes are all that is sent here
        """Send all of it."""
        self._traffic.nbytes += len(data)
        super().sendall(data, flags)


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """How the attacked service is started."""

    settings: tuple[tuple[str, object], ...] = ()
    keys: int = 0
    """API keys that the service knows, of which the attacker and the well-behaved client have one each; 0 for none."""
    quota: str = ""
    """Options of the attacker's key, such as rate=5/s."""
    max_open_files: int = 0
    """`ulimit -n`; 0 leaves it as it is."""
    slow_names: bool = False
    """Whether names under SLOW_DOMAIN never resolve."""


Send = Callable[[Target], str]
"""Sends an attack and returns a summary of the answer; raises PromiseBroken."""


@dataclass(frozen=True, slots=True)
class Case:
    """An attack: its name, what it sends, and how. What must hold is the same for all: see bench.attack.measure."""

    name: str
    what: str
    send: Send
    beside: str = "predict"
    """What the well-behaved client asks for: one of bench.attack.beside.CLIENTS."""
    options: ServiceOptions = ServiceOptions()
    folded: bool = False
    """Whether its files are repeated up to the limits of one request."""


def cases(
    *rows: tuple[str, str, Send], beside: str = "predict", options: ServiceOptions = ServiceOptions()
) -> list[Case]:
    """Cases by name, what they send, and how, with equal options."""
    return [Case(*row, beside, options) for row in rows]


def folded(those: Iterable[Case]) -> list[Case]:
    """The same cases, with as many copies of their files as one request may have."""
    return [
        replace(case, name=f"{case.name}-n-fold", what=f"{case.what}: as many as fit", folded=True) for case in those
    ]


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
