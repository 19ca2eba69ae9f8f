"""Hostile WebSocket clients: they harm only themselves.

That they leave no connection, stream or buffered byte behind is asserted for every test, see tests/counts.py.
"""

import contextlib
import select
import socket
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from unittest import mock

import pytest
from prometheus_client import REGISTRY

from gateway.plugins.streams.websockets import MAX_FRAGMENTS
from tests import streaming
from tests.attack.websocket import BINARY, CLOSE, GOOD, PING, TEXT, handshake, message
from tests.doubles.backend import frame, frame_backend
from tests.processes import wait_for
from tests.services import stream_service
from tests.streaming import TIMEOUT_SECONDS

MIB = 2**20
HEAD_END = b"\r\n\r\n"
NO_ROOM = struct.pack("!BBH", 0x80 | CLOSE, 12, 4503) + b"overloaded"
"""The close frame of a stream whose messages take more memory than there is."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    limits = {"answer_timeout_seconds": 0.5, "upload_idle_timeout_seconds": 1}
    with (
        mock.patch("gateway.plugins.streams.session.STREAM_IDLE_SECONDS", 2.0),
        stream_service(frame_backend(), max_streams=8, **limits) as (address, _),
    ):
        yield address


def request(address: str, query: bytes = b"", **headers: str) -> bytes:
    changed = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
    return handshake({**dict(GOOD), b"Host": address.encode(), **changed}.items(), query)


@contextlib.contextmanager
def raw(address: str, first: bytes) -> Iterator[socket.socket]:
    host, port = address.split(":")
    with socket.socket() as connection:
        connection.settimeout(TIMEOUT_SECONDS)
        # Small, so that few answers fill it: the gateway then notices sooner that a client does not read.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        connection.connect((host, int(port)))
        connection.sendall(first)
        yield connection


@contextlib.contextmanager
def opened(address: str, query: bytes = b"") -> Iterator[socket.socket]:
    """A connection that has become a stream."""
    with raw(address, request(address, query)) as connection:
        until(connection, HEAD_END)
        yield connection


def until(connection: socket.socket, words: bytes | None = None) -> bytes:
    """The bytes up to these words, or all until the gateway closes the connection."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while (words is None or words not in received) and (data := connection.recv(65_536)):
            received += data
    return received


def close_code(connection: socket.socket) -> int:
    received = until(connection)
    position = received.rindex(bytes([0x80 | CLOSE]))
    return int(struct.unpack_from("!H", received, position + 2)[0])


def serves(address: str) -> bool:
    """Whether another client is served meanwhile."""
    with streaming.opened(address) as client:
        return streaming.ask(client, frame(255))["status"] == "ok"


def test_client_that_never_reads_is_disconnected(address):
    flood = message(PING, b"x" * 125) * 2_000
    cut = threading.Event()

    def send(connection: socket.socket) -> None:
        try:
            while True:
                connection.sendall(flood)
        except OSError:
            cut.set()

    with opened(address) as connection:
        connection.settimeout(TIMEOUT_SECONDS)
        thread = threading.Thread(target=send, args=(connection,), daemon=True)
        thread.start()
        assert serves(address)
        assert cut.wait(TIMEOUT_SECONDS), "the gateway reads on for ever, or waits for ever"
        thread.join(TIMEOUT_SECONDS)


def test_message_in_endless_fragments_is_refused(address):
    with opened(address) as connection:
        connection.sendall(message(BINARY, final=False) + message(0, final=False) * (2 * MAX_FRAGMENTS))
        assert close_code(connection) == 1008


def waiting() -> float:
    """Buffered bytes of the services of this process."""
    return REGISTRY.get_sample_value("gateway_waiting_bytes")


@pytest.mark.parametrize("final", [True, False], ids=["one part", "two parts"])
def test_incomplete_message_counts_as_buffered(address, final):
    data = frame(255) + bytes(60_000)
    with opened(address, b"?top_k=1") as connection:
        half = message(BINARY, data)[:40_000] if final else message(BINARY, data[:40_000], final=False)
        connection.sendall(half)
        wait_for(lambda: 39_900 < waiting() <= 40_100)
        connection.sendall(message(BINARY, data)[40_000:] if final else message(0, data[40_000:]))
        assert b'"type":"frame"' in until(connection, b'"type":"frame"')
        wait_for(lambda: waiting() == 0)


def test_incomplete_message_is_evicted_for_another():
    limits = {"max_bytes_waiting": 2**20, "max_file_bytes": 2**20}
    part = message(BINARY, bytes(700_000))[:600_000]
    with stream_service(frame_backend(), **limits) as (address, _), contextlib.ExitStack() as stack:
        first, second = (stack.enter_context(opened(address)) for _ in range(2))
        first.sendall(part)
        wait_for(lambda: waiting() > 590_000)
        second.sendall(part)
        gone = select.select((first, second), (), (), TIMEOUT_SECONDS)[0][0]
        assert b'"code":"overloaded"' in (words := until(gone, NO_ROOM))
        assert words.endswith(NO_ROOM)
        # The other one keeps its place, and its message.
        other = second if gone is first else first
        wait_for(lambda: 590_000 < waiting() < 610_000)
        other.sendall(message(BINARY, bytes(700_000))[600_000:])
        assert b"unsupported_format" in until(other, b"unsupported_format")


def test_bytes_behind_a_handshake_are_evicted():
    limits = {"max_bytes_waiting": 32_768, "max_file_bytes": 32_768}
    with stream_service(frame_backend(), **limits) as (address, _):
        with raw(address, request(address) + message(BINARY, bytes(250_000))) as connection:
            assert until(connection, NO_ROOM).endswith(NO_ROOM)
        assert serves(address)


def test_waiting_frames_count_as_buffered():
    backend = frame_backend()
    data = frame(255) + bytes(100_000)
    with (
        stream_service(backend, max_images_in_flight=1, max_wait_seconds=60) as (address, _),
        streaming.opened(address, "?drop=never") as client,
    ):
        backend.gate.clear()
        try:
            for _ in range(6):
                client.send(data)
            # One has its permit; one waits for it, two for their turn, and one where the socket is no longer read.
            wait_for(lambda: waiting() >= 4 * len(data))
        finally:
            backend.gate.set()
        answers = [streaming.answer(client) for _ in range(6)]
        assert [(each["frame"], each["status"]) for each in answers] == [(number, "ok") for number in range(6)]
        wait_for(lambda: waiting() == 0)


def test_trickled_message_does_not_keep_a_stream_open(address):
    with opened(address) as connection:
        connection.sendall(message(BINARY, bytes(1_000))[:-500])
        received = b""
        until = time.monotonic() + TIMEOUT_SECONDS
        connection.settimeout(0.2)
        while b"stream_idle" not in received and time.monotonic() < until:
            with contextlib.suppress(TimeoutError):
                received += connection.recv(1_000)
            with contextlib.suppress(OSError):
                connection.sendall(b"x")
        assert b"stream_idle" in received


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (message(TEXT, b"{}", masked=False), 1002),
        (message(TEXT, b"\xff\xfe"), 1007),
    ],
    ids=["unmasked", "not UTF-8"],
)
def test_protocol_violation_ends_the_stream(address, wrong, code):
    with opened(address) as connection:
        connection.sendall(wrong)
        assert close_code(connection) == code
    assert serves(address)


@pytest.mark.parametrize("opcode", [TEXT, BINARY])
def test_compressed_message_is_refused_unread(address, opcode):
    """Compression is offered, and not taken up: a message of 100 kB would become 100 MB."""
    compressor = zlib.compressobj(9, wbits=-15)
    bomb = compressor.compress(bytes(10**8)) + compressor.flush(zlib.Z_SYNC_FLUSH)
    offered = request(address, Sec_WebSocket_Extensions="permessage-deflate; client_max_window_bits")
    with raw(address, offered) as connection:
        assert b"sec-websocket-extensions" not in until(connection, HEAD_END).lower()
        compressed = bytearray(message(opcode, bomb))
        compressed[0] |= 0x40
        with contextlib.suppress(OSError):
            connection.sendall(compressed)
        assert close_code(connection) == 1002
    assert serves(address)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec_WebSocket_Version": "8"}, b"400"),
        ({"Sec_WebSocket_Key": "short"}, b"400"),
        ({"Upgrade": "h2c"}, b"426"),
        ({"Host": "", "Origin": "null"}, b"403"),
        ({"Content_Length": "5"}, b"426"),
        ({"Transfer_Encoding": "chunked"}, b"426"),
        ({"X_Long": "x" * 9_000}, b"426"),
    ],
)
def test_unusual_handshake_is_answered(address, headers, status):
    with raw(address, request(address, **headers)) as connection:
        assert connection.recv(4_096).split()[1] == status


def test_pipelined_handshake_is_served_as_a_request(address):
    first = f"GET /health/live HTTP/1.1\r\nHost: {address}\r\n\r\n".encode()
    with raw(address, first + request(address)) as connection:
        received = b""
        while received.count(b"HTTP/1.1") < 2:
            received += connection.recv(4_096)
        assert [part.split()[0] for part in received.split(b"HTTP/1.1")[1:]] == [b"200", b"426"]
