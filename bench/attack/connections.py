"""Connections of one client: more than the limit, each kept open as long as the service allows."""

import contextlib
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable

from bench.attack.clients import HEAD, PART, answers
from bench.attack.target import CLIENTS, Attacks, ServiceOptions, Target, receive, repeated, summary
from bench.attack.websocket import BINARY, TEXT, frame, handshake

ATTACKS = Attacks()
BEYOND = 10
BEYOND_LIMIT = 1_000 + BEYOND
DRIP_SECONDS = 0.5
RECENT = 200
"""Connections that a client keeps while it opens new ones."""
PUSHED_BYTES = 300 << 20
PUSH_SECONDS = 3.0
FEW = ServiceOptions(max_open_files=256)
"""`ulimit -n` of the service: its own files and the calls to Triton take some of them."""
UPLOAD = HEAD.encode() + b"Content-Length: 100000\r\n\r\n" + PART
UPGRADE = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAA")


@ATTACKS.add(requests=72)
def upgrades_of_odd_framing(target: Target) -> str:
    """WebSocket handshakes with every invalid framing of a body, on twelve connections each."""
    framings = (
        "Content-Length: 0",
        "Content-Length: 18446744073709551615",
        "Content-Length: 5\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: gzip, chunked",
        "Content-Length: -1",
        "Expect: 100-continue\r\nContent-Length: 5",
    )
    opened = [_sent(target, _upgrade(framing) + b"abcde") for framing in framings for _ in range(12)]
    time.sleep(target.hold_seconds)
    return answers(opened)


@ATTACKS.add(requests=CLIENTS)
def handshakes_that_are_reset_later(target: Target) -> str:
    """Four hundred clients open a stream and reset the connection later: half of them have their answer."""
    for number in range(target.clients):
        with contextlib.suppress(OSError):
            connection = _sent(target, handshake(target))
            if number % 2:
                _receive_some(connection)
            _reset(connection)
    return "left"


@ATTACKS.add(requests=CLIENTS // 2)
def frames_behind_a_handshake_that_is_refused(target: Target) -> str:
    """Two hundred clients send frames right after a handshake that is refused."""
    sent = handshake(target, "/stream?model=nope") + frame(BINARY, b"x") * 3 + frame(TEXT, b"{}") + bytes(100_000)
    return answers([_sent(target, sent) for _ in range(target.clients // 2)])


@ATTACKS.add(requests=CLIENTS // 2)
def frames_behind_a_handshake_of_no_use(target: Target) -> str:
    """Two hundred clients send bytes right after a handshake without a valid key, version or path."""
    whole = handshake(target)
    broken = (
        whole.replace(b"Sec-WebSocket-Version: 13", b"Sec-WebSocket-Version: 12"),
        whole.replace(b"Sec-WebSocket-Key: ", b"Sec-WebSocket-Key: \xff"),
        whole.replace(b"/stream", b"/streams"),
        whole.replace(b"GET", b"HEAD"),
    )
    return answers(
        [_sent(target, each + frame(BINARY, b"x") * 50) for each in broken for _ in range(target.clients // 8)]
    )


@ATTACKS.add(requests=BEYOND_LIMIT)
def slow_uploads_and_connections_without_end(target: Target) -> str:
    """As many slow uploads beside a client that connects as fast as it can, sends nothing, and leaves."""
    done = threading.Event()
    connected = 0

    def connect() -> None:
        nonlocal connected
        recent: deque[socket.socket] = deque()
        while not done.is_set():
            with contextlib.suppress(OSError):
                recent.append(target.connect())
                connected += 1
            if len(recent) > RECENT:
                recent.popleft().close()

    client = threading.Thread(target=connect)
    client.start()
    try:
        return f"{_dripping(target, UPLOAD, _enough(target))}; {connected} connections"
    finally:
        done.set()
        client.join()


@ATTACKS.add(requests=16 * BEYOND_LIMIT)
def unread_answers_everywhere(target: Target) -> str:
    """More clients than the connection limit request sixteen large documents each and read none."""
    opened = []
    for _ in range(_enough(target)):
        with contextlib.suppress(OSError):
            connection = target.connect()
            opened.append(connection)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            connection.settimeout(0.5)
            connection.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 16)
    time.sleep(target.hold_seconds)
    return answers(opened)


@ATTACKS.add(requests=BEYOND_LIMIT)
def health_requests_everywhere(target: Target) -> str:
    """More connections than the limit request /health/live repeatedly and read no response."""
    request = b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n"
    opened = [_sent(target, request * 20) for _ in range(_enough(target))]
    ends = time.monotonic() + target.hold_seconds
    while time.monotonic() < ends:
        for connection in opened:
            with contextlib.suppress(OSError):
                connection.settimeout(0.01)
                connection.sendall(request)
        time.sleep(min(DRIP_SECONDS, target.hold_seconds / 4))
    return answers(opened)


@ATTACKS.add(requests=400, options=FEW)
def idle_connections_beyond_files(target: Target) -> str:
    """Four hundred connections without a request to a service that may have 256 open files."""
    opened = [_sent(target, b"") for _ in range(400)]
    time.sleep(target.hold_seconds)
    return answers(opened)


def _receive_some(connection: socket.socket) -> None:
    """Wait for the first bytes of an answer."""
    connection.settimeout(2.0)
    with contextlib.suppress(OSError):
        connection.recv(1 << 12)


def _enough(target: Target) -> int:
    """More connections than the limit; those of several workers are not spread evenly."""
    return (target.max_connections + BEYOND) * (target.workers if target.workers == 1 else target.workers + 1)


def _upgrade(framing: str) -> bytes:
    return "\r\n".join(["GET /stream HTTP/1.1", "Host: x", *UPGRADE, framing, "\r\n"]).encode()


def _sent(target: Target, data: bytes) -> socket.socket:
    """A connection on which the bytes were sent, as far as the service took them."""
    connection = target.connect()
    connection.settimeout(2.0)
    with contextlib.suppress(OSError):
        connection.sendall(data)
    return connection


def _all_of(target: Target, request: Callable[[], bytes]) -> str:
    """Open more connections than the limit with a request each, and keep them."""
    opened = []
    for _ in range(_enough(target)):
        with contextlib.suppress(OSError):
            opened.append(_sent(target, request()))
    time.sleep(target.hold_seconds)
    return answers(opened)


def _pushed(target: Target, head: bytes, unit: bytes) -> str:
    """Send a request and 300 MiB after it, until the service takes no more or the time is over."""
    sent = 0
    ends = time.monotonic() + PUSH_SECONDS
    with target.connect() as connection:
        connection.settimeout(1.0)
        with contextlib.suppress(OSError):
            connection.sendall(head)
            for piece in repeated(unit, PUSHED_BYTES, 1 << 18):
                if time.monotonic() > ends:
                    break
                connection.sendall(piece)
                sent += len(piece)
        answer = summary(receive(connection, 1.0))
    return f"{answer} after {sent >> 20} MiB"


def _reset_each(target: Target, sent: bytes) -> str:
    for _ in range(target.clients):
        with contextlib.suppress(OSError):
            _reset(_sent(target, sent))
    return "left"


def _reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def _dripping(target: Target, head: bytes, count: int) -> str:
    """Open connections that begin a request and send a byte at a time; each reconnects when it is closed."""
    connections: list[socket.socket | None] = [None] * count
    opened = 0
    ends = time.monotonic() + target.hold_seconds
    while time.monotonic() < ends:
        for number, connection in enumerate(connections):
            with contextlib.suppress(OSError):
                if connection is None or not _drop(connection):
                    connections[number] = None
                    connections[number] = _sent(target, head)
                    opened += 1
        time.sleep(min(DRIP_SECONDS, target.hold_seconds / 4))
    return f"{opened - count} connected again; {answers(filter(None, connections))}"


def _drop(connection: socket.socket) -> bool:
    """Send a byte; returns whether the connection is still open."""
    connection.setblocking(False)  # noqa: FBT003  # as the standard library has it
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


# fmt: off
ATTACKS.rows(
    ("upgrades-with-a-length", "More connections than the limit ask for a stream, announce a body and never send it",
     lambda target: _all_of(target, lambda: _upgrade("Content-Length: 5"))),
    ("upgrades-with-chunks",
     "More connections than the limit ask for a stream, announce a chunked body and never send it",
     lambda target: _all_of(target, lambda: _upgrade("Transfer-Encoding: chunked"))),
    ("half-handshakes", "More connections than the limit send a WebSocket handshake without its last line",
     lambda target: _all_of(target, lambda: handshake(target)[:-2])),
    ("slow-uploads-everywhere",
     "More slow uploads than the connection limit, each of which reconnects when it is closed",
     lambda target: _dripping(target, UPLOAD, _enough(target))),
    ("slow-headers-everywhere",
     "More connections than the limit send headers that do not end, and reconnect when closed",
     lambda target: _dripping(target, b"GET /health/live HTTP/1.1\r\nHost: x\r\nA: ", _enough(target))),
    requests=BEYOND_LIMIT,
)
ATTACKS.rows(
    ("upgrade-that-sends-its-body", "One WebSocket handshake with a chunked body of 300 MiB",
     lambda target: _pushed(target, _upgrade("Transfer-Encoding: chunked"), b"8000\r\n" + bytes(0x8000) + b"\r\n")),
    ("upgrade-that-sends-without-end", "300 MiB of zeros after a WebSocket handshake that announces five bytes of body",
     lambda target: _pushed(target, _upgrade("Content-Length: 5"), bytes(0x8000))),
)
ATTACKS.rows(
    ("handshakes-that-are-reset", "Four hundred clients open a stream and reset the connection at once",
     lambda target: _reset_each(target, handshake(target))),
    requests=CLIENTS,
)
ATTACKS.rows(
    ("more-connections-than-files", "Four hundred slow uploads to a service that may have 256 open files",
     lambda target: _dripping(target, UPLOAD, 400)),
    requests=400,
    options=FEW,
)
# fmt: on
