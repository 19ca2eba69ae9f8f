"""The attacked service as a target, and the registry of attacks."""

import contextlib
import itertools
import json
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.http_load import BOUNDARY, form

SECONDS = 60.0
CLIENTS = 400
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
    """Counts the bytes that an attack sent, the files in its forms, and their bytes in SLOW_CODECS."""

    nbytes: int = 0
    files: int = 0
    slow_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Target:
    """A gateway at an address, and the size of the attacks on it.

    `max_connections` and `max_streams` are those of one of its `workers`; an attack that keeps them does so for
    `hold_seconds`. `clients` is the number of connections of an attack that does not keep them. `key` is an API key of
    the attacker where the service needs one, and `keys_file` the file that accepts it. `folded` makes each form as
    large as one request may be, by repeating its files.
    """

    host: str
    port: int
    nbytes: int = 20_000_000
    workers: int = 1
    max_connections: int = 1_000
    max_streams: int = 64
    hold_seconds: float = 6.0
    clients: int = CLIENTS
    key: str = ""
    keys_file: Path | None = None
    folded: bool = False
    traffic: Traffic = field(default_factory=Traffic)

    def connect(self) -> socket.socket:
        """Open a connection that counts the bytes it sends."""
        connection = CountingSocket(self.traffic)
        connection.settimeout(SECONDS)
        try:
            connection.connect((self.host, self.port))
        except OSError:
            connection.close()
            raise
        return connection

    def raw(self, pieces: Iterable[bytes]) -> str:
        """Send bytes as they are; returns a summary of the first response."""
        with self.connect() as connection:
            with contextlib.suppress(OSError):  # the service may refuse it before all is sent
                for piece in pieces:
                    connection.sendall(piece)
            return summary(receive(connection))

    def post(self, path: str, body: bytes | Iterable[bytes], content_type: str, *headers: str) -> str:
        """Send a request, its body in chunks unless it is bytes; returns a summary of the response."""
        lines = [f"POST {path} HTTP/1.1", f"Host: {self.host}", f"Content-Type: {content_type}", "Connection: close"]
        lines += [f"X-API-Key: {self.key}"] if self.key else []
        if isinstance(body, bytes):
            length, pieces = f"Content-Length: {len(body)}", iter([body])
        else:
            length, pieces = "Transfer-Encoding: chunked", chunked(body)
        head = "\r\n".join([*lines, *headers, length, "\r\n"]).encode()
        return self.raw([head, *pieces] if isinstance(body, bytes) else _chain(head, pieces))

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
    keys: bool = False
    """Whether every request needs an API key; the attacker and the well-behaved client then have one each."""
    max_open_files: int = 0
    """`ulimit -n`; 0 leaves it as it is."""


Send = Callable[[Target], str]
"""Sends an attack and returns a summary of the answer; raises PromiseBroken."""


@dataclass(frozen=True, slots=True)
class Attack:
    """One hostile request or several; `send` raises PromiseBroken if an answer breaks a promise of the service."""

    name: str
    what: str
    send: Send
    requests: int = 1
    """The number of requests that it consists of."""
    per_second: bool = False
    """Whether its allowance is per second, as for a stream, instead of per request."""
    may_kill: int = 0
    """The number of Tritons in which it may end a process."""
    folded: bool = False
    """Whether its files are repeated up to the limits of one request."""
    options: ServiceOptions = ServiceOptions()


class Attacks(list[Attack]):
    """The attacks of one family, in the order of their rows in the table."""

    def add(
        self,
        *,
        requests: int = 1,
        per_second: bool = False,
        may_kill: int = 0,
        options: ServiceOptions = ServiceOptions(),
    ) -> Callable[[Send], Send]:
        """Register a function; its name and the first line of its docstring become those of the attack."""

        def register(send: Send) -> Send:
            what = (send.__doc__ or "").partition("\n")[0].rstrip(".")
            name = send.__name__.replace("_", "-")
            self.append(Attack(name, what, send, requests, per_second, may_kill, options=options))
            return send

        return register

    def rows(
        self,
        *rows: tuple[str, str, Send],
        requests: int = 1,
        per_second: bool = False,
        may_kill: int = 0,
        options: ServiceOptions = ServiceOptions(),
    ) -> None:
        """Register attacks that need no code of their own: a name, what it sends, and how."""
        self.extend(Attack(*row, requests, per_second, may_kill, options=options) for row in rows)


def folded(attacks: Iterable[Attack]) -> Attacks:
    """The same attacks, with as many copies of their files as one request may have."""
    return Attacks(
        replace(attack, name=f"{attack.name}-n-fold", what=f"{attack.what}: as many as fit", folded=True)
        for attack in attacks
    )


def raw_post(path: str, files: Iterable[bytes]) -> bytes:
    """The bytes of a request with a form of files."""
    body = b"".join(form(files))
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: {MULTIPART}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


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


def _chain(head: bytes, pieces: Iterator[bytes]) -> Iterator[bytes]:
    yield head
    yield from pieces
