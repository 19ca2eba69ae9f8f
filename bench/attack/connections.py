"""Connections of one client: more than the service has, each kept as busy as it can be for nothing."""

import contextlib
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

from bench.attack.clients import HEAD, PART, answers
from bench.attack.target import CLIENTS, Attack, ServiceOptions, Target, attacks_of, receive, repeated, told
from bench.attack.websocket import BINARY, TEXT, frame, handshake

BEYOND = 10
DRIP_SECONDS = 0.5
RECENT = 200
"""Connections that a client keeps which opens them without end."""
PUSHED_BYTES = 300 << 20
PUSH_SECONDS = 3.0
FEW_FILES = 256
"""`ulimit -n` of the service in one attack: its own files and Triton's calls take some of them."""
UPLOAD = HEAD.encode() + b"Content-Length: 100000\r\n\r\n" + PART
UPGRADE = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAA")


def upgrades_with_a_length(target: Target) -> str:
    """More connections than the limit ask for a stream, announce a body and never send it."""
    return _all_of(target, lambda: _upgrade("Content-Length: 5"))


def upgrades_with_chunks(target: Target) -> str:
    """The same with a body in chunks."""
    return _all_of(target, lambda: _upgrade("Transfer-Encoding: chunked"))


def upgrade_that_sends_its_body(target: Target) -> str:
    """One WebSocket handshake with a chunked body of 300 MiB."""
    return _pushed(target, _upgrade("Transfer-Encoding: chunked"), b"8000\r\n" + bytes(0x8000) + b"\r\n")


def upgrade_that_sends_without_end(target: Target) -> str:
    """300 MiB of zeros after a WebSocket handshake that announces five bytes of body."""
    return _pushed(target, _upgrade("Content-Length: 5"), bytes(0x8000))


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


def half_handshakes(target: Target) -> str:
    """More connections than the limit send a WebSocket handshake without its last line."""
    return _all_of(target, lambda: handshake(target)[:-2])


def handshakes_that_are_reset(target: Target) -> str:
    """Four hundred clients open a stream and reset the connection at once."""
    return _reset_each(target, handshake(target))


def handshakes_that_are_reset_later(target: Target) -> str:
    """The same, a moment later: half of them have their answer."""
    for number in range(target.clients):
        with contextlib.suppress(OSError):
            connection = _sent(target, handshake(target))
            if number % 2:
                receive_some(connection)
            _reset(connection)
    return "left"


def frames_behind_a_handshake_that_is_refused(target: Target) -> str:
    """Two hundred clients send frames right after a handshake that is refused."""
    sent = handshake(target, "/stream?model=nope") + frame(BINARY, b"x") * 3 + frame(TEXT, b"{}") + bytes(100_000)
    return answers([_sent(target, sent) for _ in range(target.clients // 2)])


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


def slow_uploads_everywhere(target: Target) -> str:
    """More slow uploads than the connection limit, each of which reconnects when it is closed."""
    return _dripping(target, UPLOAD, _enough(target))


def slow_uploads_and_connections_without_end(target: Target) -> str:
    """The same beside a client that connects as fast as it can, sends nothing, and leaves."""
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


def slow_headers_everywhere(target: Target) -> str:
    """The same with headers that do not end."""
    return _dripping(target, b"GET /health/live HTTP/1.1\r\nHost: x\r\nA: ", _enough(target))


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


def more_connections_than_files(target: Target) -> str:
    """Four hundred slow uploads to a service that may have 256 open files."""
    return _dripping(target, UPLOAD, 400)


def idle_connections_beyond_files(target: Target) -> str:
    """Four hundred connections without a request, to the same."""
    opened = [_sent(target, b"") for _ in range(400)]
    time.sleep(target.hold_seconds)
    return answers(opened)


def receive_some(connection: socket.socket) -> None:
    """Wait for the first bytes of an answer."""
    connection.settimeout(2.0)
    with contextlib.suppress(OSError):
        connection.recv(1 << 12)


def _enough(target: Target) -> int:
    """More connections than the service may have; those of several workers are not spread evenly."""
    return (target.max_connections + BEYOND) * (target.workers if target.workers == 1 else target.workers + 1)


def _upgrade(framing: str) -> bytes:
    return "\r\n".join(["GET /stream HTTP/1.1", "Host: x", *UPGRADE, framing, "\r\n"]).encode()


def _sent(target: Target, data: bytes) -> socket.socket:
    """A connection on which these bytes were sent, if it took them."""
    connection = target.connect()
    connection.settimeout(2.0)
    with contextlib.suppress(OSError):
        connection.sendall(data)
    return connection


def _all_of(target: Target, request: Callable[[], bytes]) -> str:
    """Take every connection with a request, and keep them."""
    opened = []
    for _ in range(_enough(target)):
        with contextlib.suppress(OSError):
            opened.append(_sent(target, request()))
    time.sleep(target.hold_seconds)
    return answers(opened)


def _pushed(target: Target, head: bytes, unit: bytes) -> str:
    """Send a request and then more, until it has all come, the service takes no more, or the time is over."""
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
        answer = told(receive(connection, 1.0))
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
    """Connections that begin a request and drip, each of which connects again when it is closed; then they hang up."""
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
    """Send a byte; whether the connection is still there."""
    connection.setblocking(False)  # noqa: FBT003  # as the standard library has it
    try:
        if not connection.recv(1, socket.MSG_PEEK):
            return _gone(connection)
        return _gone(connection)  # an answer, though the request is not complete
    except BlockingIOError:
        pass
    except OSError:
        return _gone(connection)
    try:
        connection.sendall(b"x")
    except BlockingIOError:
        return True
    except OSError:
        return _gone(connection)
    return True


def _gone(connection: socket.socket) -> bool:
    connection.close()
    return False


FEW = ServiceOptions(max_open_files=FEW_FILES)


def _requests(functions: Iterable[Callable[[Target], str]], count: int) -> dict[str, int]:
    return {function.__name__: count for function in functions}


_EVERYWHERE = (
    upgrades_with_a_length,
    upgrades_with_chunks,
    half_handshakes,
    slow_uploads_everywhere,
    slow_uploads_and_connections_without_end,
    slow_headers_everywhere,
    unread_answers_everywhere,
    health_requests_everywhere,
)
_OTHERS = (
    upgrade_that_sends_its_body,
    upgrade_that_sends_without_end,
    upgrades_of_odd_framing,
    handshakes_that_are_reset,
    handshakes_that_are_reset_later,
    frames_behind_a_handshake_that_is_refused,
    frames_behind_a_handshake_of_no_use,
)
ATTACKS: list[Attack] = [
    *attacks_of(
        *_EVERYWHERE,
        *_OTHERS,
        requests={
            **_requests(_EVERYWHERE, 1_000 + BEYOND),
            "unread_answers_everywhere": 16 * (1_000 + BEYOND),
            "upgrades_of_odd_framing": 72,
            "handshakes_that_are_reset": CLIENTS,
            "handshakes_that_are_reset_later": CLIENTS,
            "frames_behind_a_handshake_that_is_refused": CLIENTS // 2,
            "frames_behind_a_handshake_of_no_use": CLIENTS // 2,
        },
    ),
    *attacks_of(
        more_connections_than_files,
        idle_connections_beyond_files,
        requests={"more_connections_than_files": 400, "idle_connections_beyond_files": 400},
        options=FEW,
    ),
]
