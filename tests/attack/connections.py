"""Connections: more than the limit, each kept open as long as the service allows, and clients that do not read."""

import contextlib
import itertools
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

from bench.http_load import BOUNDARY, form
from tests import costly_files as files
from tests.attack.parsers import SMALL_BMP
from tests.attack.target import (
    MULTIPART,
    Target,
    cases,
    counted,
    receive,
    repeated,
    summary,
)
from tests.attack.websocket import handshake

BEYOND = 10
DRIP_SECONDS = 0.5
RECENT = 200
"""Connections that a client keeps while it opens new ones."""
PUSHED_BYTES = 300 << 20
PUSH_SECONDS = 3.0
PART = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="f"; filename="x.jpg"\r\n\r\n'.encode()
UPGRADE = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAA")
LEAVES_WITH_A_RESET = socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)


def answers(connections: Iterable[socket.socket]) -> str:
    """Count the answers so far, and close the connections."""
    found = []
    for connection in connections:
        with connection:
            connection.settimeout(0.01)
            found.append(_answer(connection))
    return counted(found)


def enough(target: Target) -> int:
    """More connections than the limit; those of several workers are not spread evenly."""
    return (target.max_connections + BEYOND) * (target.workers if target.workers == 1 else target.workers + 1)


def _answer(connection: socket.socket) -> str:
    received = receive(connection, 0.02)
    if not received:
        with contextlib.suppress(TimeoutError):
            with contextlib.suppress(ConnectionError):
                connection.recv(1)
            return "closed"
        return "none yet"
    return summary(received)


def _upgrade(target: Target, framing: str) -> bytes:
    return target.head("GET /stream", *UPGRADE, framing)


def _upload(target: Target, nbytes: int = 100_000) -> bytes:
    """The begin of an upload."""
    return target.head("POST /predict", f"Content-Type: {MULTIPART}", f"Content-Length: {nbytes}") + PART


def _form(target: Target, *data: bytes, query: str = "") -> bytes:
    body = b"".join(form(data))
    return target.head(f"POST /predict{query}", f"Content-Type: {MULTIPART}", f"Content-Length: {len(body)}") + body


def _held(target: Target, request: Callable[[], bytes] | bytes, count: int = 0, **options: int) -> str:
    """Open connections with a request each, by default more than the limit, and keep them."""
    opened = target.open(count or enough(target), request, **options)
    time.sleep(target.hold_seconds)
    return answers(opened)


def _begun(target: Target, nbytes: int) -> socket.socket:
    """An unfinished upload of which `nbytes` have been sent."""
    (connection,) = target.open(1, _upload(target, 1_000_000_000))
    with contextlib.suppress(OSError):
        for piece in repeated(bytes(1_000), nbytes, 1_000):
            connection.sendall(piece)
    return connection


def _stalled(target: Target, count: int, nbytes: int, *, drips: bool = False) -> str:
    """Begin uploads that then stop, or go on a byte at a time."""
    opened = [_begun(target, nbytes) for _ in range(count)]
    ends = time.monotonic() + target.hold_seconds
    while time.monotonic() < ends:
        for connection in opened if drips else ():
            with contextlib.suppress(OSError):
                connection.sendall(b"x")
        time.sleep(min(DRIP_SECONDS, target.hold_seconds / 4))
    return answers(opened)


def _dripping(target: Target, head: Callable[[], bytes], count: int) -> str:
    """Open connections that begin a request and send a byte at a time; each reconnects when it is closed."""
    connections: list[socket.socket | None] = [None] * count
    opened = 0
    ends = time.monotonic() + target.hold_seconds
    while time.monotonic() < ends:
        for number, connection in enumerate(connections):
            if connection is None or not _drop(connection):
                connections[number] = next(iter(target.open(1, head())), None)
                opened += 1
        time.sleep(min(DRIP_SECONDS, target.hold_seconds / 4))
    return f"{opened - count} connected again; {answers(filter(None, connections))}"


def _drop(connection: socket.socket) -> bool:
    """Send a byte; returns whether the connection is still open."""
    connection.setblocking(False)  # as the standard library has it
    try:
        connection.recv(1, socket.MSG_PEEK)  # the end of the stream, or an answer before the end of the request
    except BlockingIOError:
        with contextlib.suppress(BlockingIOError):
            try:
                connection.sendall(b"x")
            except ConnectionError:
                connection.close()
                return False
        return True
    except OSError:
        pass
    connection.close()
    return False


def _slow_uploads_beside_connections_without_end(target: Target) -> str:
    done = threading.Event()
    connected = 0

    def connect() -> None:
        nonlocal connected
        recent: deque[socket.socket] = deque()
        while not done.is_set():
            recent.extend(target.open(1))
            connected += 1
            if len(recent) > RECENT:
                recent.popleft().close()

    client = threading.Thread(target=connect)
    client.start()
    try:
        return f"{_dripping(target, lambda: _upload(target), enough(target))}; {connected} connections"
    finally:
        done.set()
        client.join()


def _health_requests_everywhere(target: Target) -> str:
    request = target.head("GET /health/live")
    opened = target.open(enough(target), request * 20)
    ends = time.monotonic() + target.hold_seconds
    while time.monotonic() < ends:
        for connection in opened:
            with contextlib.suppress(OSError):
                connection.settimeout(0.01)
                connection.sendall(request)
        time.sleep(min(DRIP_SECONDS, target.hold_seconds / 4))
    return answers(opened)


def _pushed(target: Target, head: bytes, unit: bytes) -> str:
    """Send a request and 300 MiB after it, until the service takes no more or the time is over."""
    sent = 0
    ends = time.monotonic() + PUSH_SECONDS
    with target.connect() as connection:
        connection.settimeout(1.0)
        with contextlib.suppress(OSError):
            connection.sendall(head)
            for piece in itertools.takewhile(lambda _: time.monotonic() < ends, repeated(unit, PUSHED_BYTES, 1 << 18)):
                connection.sendall(piece)
                sent += len(piece)
        answer = summary(receive(connection, 1.0))
    return f"{answer} after {sent >> 20} MiB"


def _left(target: Target, request: Callable[[], bytes], count: int, seconds: float = 0.0) -> str:
    """Send requests whose client resets the connection."""
    for _ in range(count):
        for connection in target.open(1, request):
            time.sleep(seconds)
            connection.setsockopt(*LEAVES_WITH_A_RESET)
            connection.close()
    return "left"


# fmt: off
CASES = cases(
    ("stalled-uploads", "Thirteen uploads that stop after 19 MB each",
     lambda target: _stalled(target, 13, target.nbytes * 19 // 20)),
    ("dripping-part", "One part of 240 MB, too large by far, whose client then drips",
     lambda target: _stalled(target, 1, target.nbytes * 12, drips=True)),
    ("dripping-uploads", "Two hundred uploads that drip a byte at a time",
     lambda target: _stalled(target, 200, 1_000, drips=True)),
    ("idle-connections", "More connections than the limit without a request",
     lambda target: _held(target, b"")),
    ("half-handshakes", "More connections than the limit send a WebSocket handshake without its last line",
     lambda target: _held(target, lambda: handshake(target)[:-2])),
    ("upgrades-with-a-body", "More connections than the limit ask for a stream, announce a body and never send it",
     lambda target: _held(target, lambda: _upgrade(target, "Content-Length: 5"))),
    ("slow-uploads-everywhere",
     "More slow uploads than the connection limit, each of which reconnects when it is closed",
     lambda target: _dripping(target, lambda: _upload(target), enough(target))),
    ("slow-uploads-and-connections-without-end",
     "As many slow uploads beside a client that connects as fast as it can, sends nothing, and leaves",
     _slow_uploads_beside_connections_without_end),
    ("slow-headers-everywhere",
     "More connections than the limit send headers that do not end, and reconnect when closed",
     lambda target: _dripping(target, lambda: target.head("GET /health/live")[:-2] + b"A: ", enough(target))),
    ("unread-answers-everywhere",
     "More clients than the connection limit request sixteen large documents each and read none",
     lambda target: _held(target, lambda: target.head("GET /openapi.json") * 16, receive_bytes=4_096)),
    ("health-requests-everywhere",
     "More connections than the limit request /health/live repeatedly and read no response",
     _health_requests_everywhere),
    ("unread-predictions", "Thirty clients that ask for large answers and do not read them",
     lambda target: _held(target, lambda: _form(target, *[SMALL_BMP] * 90, query="?top_k=1000"), 30,
                          receive_bytes=4_096)),
    ("upgrade-that-sends-its-body", "One WebSocket handshake with a chunked body of 300 MiB",
     lambda target: _pushed(target, _upgrade(target, "Transfer-Encoding: chunked"),
                            b"8000\r\n" + bytes(0x8000) + b"\r\n")),
    ("clients-that-leave", "Sixty clients that send an image which decodes slowly, and leave",
     lambda target: _left(target, lambda: _form(target, files.black_png(7_000)), 60, 0.02)),
    ("handshakes-that-are-reset", "Four hundred clients open a stream and reset the connection at once",
     lambda target: _left(target, lambda: handshake(target), target.clients)),
    ("requests-at-once", "A hundred requests at once with twenty images each",
     lambda target: _held(target, lambda: _form(target, *[SMALL_BMP] * 20), 100)),
)
# fmt: on
