"""What is attacked, and what an attack is."""

import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

SECONDS = 60.0
BOUNDARY = "a-boundary-that-no-photograph-contains"
MULTIPART = f"multipart/form-data; boundary={BOUNDARY}"


@dataclass(frozen=True, slots=True)
class Target:
    """A gateway at an address, and how large an attack on it is to be."""

    host: str
    port: int
    nbytes: int = 20_000_000

    def connect(self) -> socket.socket:
        """A connection."""
        return socket.create_connection((self.host, self.port), timeout=SECONDS)

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
        if isinstance(body, bytes):
            length, pieces = f"Content-Length: {len(body)}", iter([body])
        else:
            length, pieces = "Transfer-Encoding: chunked", chunked(body)
        head = "\r\n".join([*lines, *headers, length, "\r\n"]).encode()
        return self.raw([head, *pieces] if isinstance(body, bytes) else _chain(head, pieces))

    def post_files(self, files: Iterable[bytes], query: str = "", name: str = "x.jpg") -> str:
        """Send files in one form."""
        return self.post(f"/predict{query}", b"".join(form(files, name)), MULTIPART)


@dataclass(frozen=True, slots=True)
class Attack:
    """One hostile request or several; `send` does it and says how it was answered, in short."""

    name: str
    what: str
    send: Callable[[Target], str]
    requests: int = 1
    """How many requests it consists of."""
    may_kill: int = 0
    """How many Tritons may lose a process to it."""


def attacks_of(*functions: Callable[[Target], str], requests: Mapping[str, int] | None = None) -> list[Attack]:
    """Functions as attacks; the first line of each docstring says what it does, `requests` where it sends several."""
    return [
        Attack(
            function.__name__.replace("_", "-"),
            (function.__doc__ or "").partition("\n")[0].rstrip("."),
            function,
            requests=(requests or {}).get(function.__name__, 1),
        )
        for function in functions
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


def _is_whole(answer: bytes | bytearray) -> bool:
    head, separator, body = answer.partition(b"\r\n\r\n")
    for line in head.lower().split(b"\r\n") if separator else ():
        if line.startswith(b"content-length:"):
            return len(body) >= int(line.partition(b":")[2])
    return False


def _chain(head: bytes, pieces: Iterator[bytes]) -> Iterator[bytes]:
    yield head
    yield from pieces
