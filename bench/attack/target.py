"""What is attacked, and what an attack is."""

import contextlib
import itertools
import json
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

SECONDS = 60.0
CLIENTS = 400
MAX_FILES = 1_000
"""Of one request, as the gateway's own default."""
BOUNDARY = "a-boundary-that-no-photograph-contains"
SLOW_CODECS = (".avif", ".heic", ".jp2", ".mp4")
"""Names of files whose bytes may cost more, as the gateway's account has it."""
PART_BYTES = 150
"""What a file needs in a form beside its data, at most."""
MULTIPART = f"multipart/form-data; boundary={BOUNDARY}"


class PromiseBroken(Exception):
    """The service did what it promises not to do; the message says what."""


@dataclass(slots=True)
class Traffic:
    """What an attack sent: the bytes on its connections, the files in its forms, and their bytes in SLOW_CODECS."""

    nbytes: int = 0
    files: int = 0
    slow_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Target:
    """A gateway at an address, and how large an attack on it is to be.

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
        """A connection, whose bytes are counted."""
        connection = CountingSocket(self.traffic)
        connection.settimeout(SECONDS)
        try:
            connection.connect((self.host, self.port))
        except OSError:
            connection.close()
            raise
        return connection

    def raw(self, pieces: Iterable[bytes]) -> str:
        """Send bytes as they are, and say what came back first, in short."""
        with self.connect() as connection:
            with contextlib.suppress(OSError):  # it may be refused before all is sent
                for piece in pieces:
                    connection.sendall(piece)
            return told(receive(connection))

    def post(self, path: str, body: bytes | Iterable[bytes], content_type: str, *headers: str) -> str:
        """Send a request, its body in chunks unless it is whole; says what came back, in short."""
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
    """How the service is started that an attack is sent to."""

    settings: tuple[tuple[str, object], ...] = ()
    keys: bool = False
    """Whether every request needs an API key. The attacker and the well-behaved client have one each."""
    max_open_files: int = 0
    """`ulimit -n`; 0 leaves it as it is."""


@dataclass(frozen=True, slots=True)
class Attack:
    """One hostile request or several; `send` does it and says how it was answered, in short.

    `send` raises PromiseBroken where an answer is not what the service promises.
    """

    name: str
    what: str
    send: Callable[[Target], str]
    requests: int = 1
    """How many requests it consists of."""
    per_second: bool = False
    """Whether its processor time is counted for each second, as a stream's is, and not for each request."""
    may_kill: int = 0
    """How many Tritons may lose a process to it."""
    folded: bool = False
    """Whether its files are repeated until one request may have no more."""
    options: ServiceOptions = ServiceOptions()


def attacks_of(
    *functions: Callable[[Target], str],
    requests: Mapping[str, int] | None = None,
    options: ServiceOptions = ServiceOptions(),
    per_second: bool = False,
) -> list[Attack]:
    """Functions as attacks; the first line of each docstring says what it does, `requests` where it sends several."""
    return [
        Attack(
            function.__name__.replace("_", "-"),
            (function.__doc__ or "").partition("\n")[0].rstrip("."),
            function,
            requests=(requests or {}).get(function.__name__, 1),
            per_second=per_second,
            options=options,
        )
        for function in functions
    ]


def folded(attacks: Iterable[Attack]) -> list[Attack]:
    """The same attacks, with as many copies of their files as one request may have."""
    return [
        replace(attack, name=f"{attack.name}-n-fold", what=f"{attack.what}: as many as fit", folded=True)
        for attack in attacks
    ]


def form(files: Iterable[bytes], name: str = "x.jpg") -> Iterator[bytes]:
    """A multipart body, a file at a time."""
    for data in files:
        yield f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="f"; filename="{name}"\r\n\r\n'.encode()
        yield data
        yield b"\r\n"
    yield f"--{BOUNDARY}--\r\n".encode()


def chunked(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Chunked transfer coding (RFC 9112, section 7.1)."""
    for piece in pieces:
        yield b"%x\r\n%b\r\n" % (len(piece), piece)
    yield b"0\r\n\r\n"


def repeated(unit: bytes, nbytes: int, piece_bytes: int = 1 << 16) -> Iterator[bytes]:
    """`nbytes`, more or less, of a unit, in pieces."""
    piece = unit * max(1, piece_bytes // len(unit))
    for _ in range(max(1, nbytes // len(piece))):
        yield piece


def receive(connection: socket.socket, seconds: float = SECONDS) -> bytes:
    """What comes until the other side closes, an answer is whole, or the time is over."""
    answer = bytearray()
    deadline = time.monotonic() + seconds
    with contextlib.suppress(OSError):
        while time.monotonic() <= deadline and not _is_whole(answer):
            part = connection.recv(1 << 16)
            if not part:
                break
            answer += part
    return bytes(answer)


def told(answer: bytes) -> str:
    """An answer in short: its status, and the codes of its errors."""
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
    """The files again and again, at least once, within `nbytes` and MAX_FILES."""
    room = nbytes
    for count, data in enumerate(itertools.cycle(files)):
        room -= len(data) + PART_BYTES
        if count >= len(files) and (room < 0 or count >= MAX_FILES):
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
