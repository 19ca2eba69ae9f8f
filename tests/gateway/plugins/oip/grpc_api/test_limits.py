"""Clients of the gRPC port that send too much or too little, or read nothing, harm only themselves.

Each attack was once enough to stop the service, or to keep everybody else out.
"""

import random
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import grpc
import httpx
import pytest

from tests.doubles.backend import PNG
from tests.gateway.plugins.oip.grpc_api.http2 import (
    CHECK,
    CONTINUATION,
    DATA,
    END_STREAM,
    HEADERS,
    INFER,
    PING,
    RESET,
    RST_STREAM,
    SETTINGS,
    STREAM,
    client,
    frame,
    header,
    prefixed,
)
from tests.gateway.plugins.oip.grpc_api.serving import request
from tests.processes import Gateway, free_port, running_gateway, wait_for

MIB = 2**20
MAX_CALLS, MAX_CONNECTIONS = 12, 40
PROGRAM = f"""
from gateway.plugins.oip.grpc_api import server
server.MAX_CALLS, server.MAX_PROBES = {MAX_CALLS}, 8
server.OPTIONS["grpc.server_handshake_timeout_ms"] = 1_000
server.OPTIONS["grpc.max_allowed_incoming_connections"] = {MAX_CONNECTIONS}
from tests.doubles.program import main; main()
"""
OK, INVALID, DEADLINE, EXHAUSTED = (
    grpc.StatusCode[name].value[0] for name in ("OK", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED")
)
READY = "/inference.GRPCInferenceService/ServerReady"
MESSAGE = request(PNG).SerializeToString()


@dataclass(frozen=True)
class Service:
    """A gateway with a gRPC port, which allows few calls and connections."""

    gateway: Gateway
    port: int

    def is_served(self) -> bool:
        """Whether a client on a new connection gets its image classified."""
        with client(self.port, timeout_seconds=60) as raw:
            return raw.status(raw.call(INFER, MESSAGE)) == OK

    def is_healthy(self) -> bool:
        """Whether the health is known, over both protocols."""
        with client(self.port, timeout_seconds=60) as raw:
            live = httpx.get(f"{self.gateway.url}/health/live", timeout=60)
            return (live.status_code, raw.status(raw.call(CHECK, b""))) == (200, OK)


@contextmanager
def running(folder: Path, **options: object) -> Iterator[Service]:
    port = free_port()
    with running_gateway(folder / "log", program=PROGRAM, grpc_port=port, **options) as gateway:
        yield Service(gateway, port)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Clients have two seconds to send a message and to read one."""
    options = {"upload_timeout_seconds": 2, "upload_idle_timeout_seconds": 2, "answer_timeout_seconds": 2}
    with running(tmp_path_factory.mktemp("limits"), **options) as service:
        yield service


@pytest.mark.parametrize("nbytes", [30_000, 60_000, 2_000_000])
def test_header_block_does_not_stop_the_process(service: Service, nbytes: int):
    """One block of 60 kB, Huffman-coded, took 36 s of the event loop."""
    began = time.monotonic()
    with client(service.port) as raw:
        call = raw.call(INFER, MESSAGE, more=header("x-long", bytes(nbytes), huffman=True))
        assert raw.status(call) in ({OK} if nbytes == 30_000 else {INVALID, EXHAUSTED, RESET})
    assert service.is_served()
    assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    "data",
    [
        frame(HEADERS, 0, 1, b"\0") + frame(CONTINUATION, 0, 1, bytes(16_000)) * 400,
        frame(HEADERS, 0, 1, b"\0") + frame(CONTINUATION, 0, 1) * 20_000,
        frame(PING, 0, 0, bytes(8)) * 20_000,
        frame(SETTINGS, 0, 0) * 100_000,
    ],
    ids=["continuation", "empty continuation", "ping", "settings"],
)
def test_endless_frames_harm_nobody(service: Service, data: bytes):
    """A first flood makes grpc take up to 40 MiB, which it keeps and uses again."""
    resident_bytes = []
    for _ in range(3):
        assert service.is_served()
        resident_bytes.append(service.gateway.resident_bytes())
        with client(service.port) as raw, suppress(ConnectionError):
            for begin in range(0, len(data), 65_536):
                raw.socket.sendall(data[begin : begin + 65_536])
            assert service.is_served()
    assert service.gateway.resident_bytes() - resident_bytes[0] < 64 * MIB
    assert service.gateway.resident_bytes() - resident_bytes[1] < 8 * MIB


@pytest.mark.parametrize("path", [b"/\xff\xfe", b"\xff"])
def test_path_that_is_no_text_does_not_end_the_server(service: Service, path: bytes):
    """grpc.aio stops to listen after it: the server starts again, and a call in progress is answered."""
    with client(service.port) as waiting, client(service.port) as raw:
        begun = waiting.call(STREAM)
        waiting.send(begun, prefixed(MESSAGE))
        wait_for(lambda: waiting.read() or begun in waiting.data)
        raw.status(raw.call(path, MESSAGE))
        wait_for(lambda: _answers(service))
        waiting.socket.sendall(frame(DATA, END_STREAM, begun, prefixed(MESSAGE)))
        assert waiting.status(begun) == OK


def test_preface_has_a_deadline(service: Service):
    with socket.create_connection(("127.0.0.1", service.port), timeout=30) as connection:
        connection.sendall(b"PRI * HTT")
        with suppress(ConnectionError):
            while connection.recv(65_536):
                pass


@pytest.mark.parametrize(("path", "sent"), [(INFER, 10), (INFER, 0), (CHECK, 0)])
def test_message_has_a_deadline(service: Service, path: str, sent: int):
    with client(service.port) as raw:
        call = raw.call(path)
        raw.send(call, (b"\0" + MIB.to_bytes(4, "big") + bytes(sent))[: 5 + sent] if sent else b"")
        assert raw.status(call) == DEADLINE


def field(number: int, payload: bytes = b"") -> bytes:
    assert len(payload) < 128
    return bytes([number << 3 | 2, len(payload)]) + payload


MEMBERS = {
    "inputs": field(5) * 500_000,
    "outputs": field(6) * 500_000,
    "parameters": field(4) * 500_000,
    "images": field(7) * 500_000,
    "nested": field(6, field(2) * 60) * 8_000,
    "elements": field(5, field(5, field(8) * 60)) * 8_000,
    "numbers": b"\x08\x01" * 500_000,
}


async def test_members_of_messages_are_counted(service: Service):
    """1 MB of empty members took 9.6 s of the event loop and 492 MB; here are 14."""
    began = time.monotonic()
    before = service.gateway.resident_bytes()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{service.port}") as channel:
        for name, message in MEMBERS.items():
            refused = channel.unary_unary(INFER)(message)
            assert await refused.code() is grpc.StatusCode.INVALID_ARGUMENT, name
            answers = [each async for each in channel.stream_stream(STREAM)(iter([message]))]
            assert len(answers) == 1, name  # the message has an error
    assert time.monotonic() - began < 20
    assert service.gateway.resident_bytes() - before < 60 * MIB


def test_unread_responses_have_a_deadline(service: Service):
    """Calls whose client reads nothing held every call for 70 minutes. They are no fault of the service."""
    offset = service.gateway.log.stat().st_size
    with ExitStack() as stack:
        for _ in range(3 * MAX_CALLS):
            raw = stack.enter_context(client(service.port, window=0))
            for path in (READY, CHECK):
                raw.call(path, b"")
        wait_for(service.is_served)
        wait_for(service.is_healthy)
    assert not [event for event in service.gateway.faults(offset) if event["event"] != "request"]


def test_connections_are_bounded(service: Service):
    """Beyond the limit, which counts this port alone, a new connection is closed."""
    with ExitStack() as stack:
        for _ in range(2 * MAX_CONNECTIONS):
            stack.enter_context(socket.create_connection(("127.0.0.1", service.port)))
        assert httpx.get(f"{service.gateway.url}/health/live", timeout=60).status_code == 200
    wait_for(lambda: _answers(service))


def _answers(service: Service) -> bool:
    with suppress(EOFError, ConnectionError):
        return service.is_served()
    return False


def test_stop_waits_for_no_client_that_is_silent_or_does_not_read(tmp_path):
    with ExitStack() as stack:
        with running(tmp_path, shutdown_grace_seconds=4, answer_timeout_seconds=60) as service:
            for _ in range(5):
                raw = stack.enter_context(client(service.port, window=0))
                raw.send(raw.call(STREAM), prefixed(MESSAGE))
                raw.call(READY, b"")
            stack.enter_context(client(service.port)).call(INFER)
            began = time.monotonic()
        assert time.monotonic() - began < 15


@pytest.mark.parametrize("seed", range(2))
def test_damaged_and_broken_off_calls_are_no_faults_of_the_service(service: Service, seed: int):
    """Frames in any order, with any content, on connections that end at any time."""
    dice, offset = random.Random(seed), service.gateway.log.stat().st_size
    message = prefixed(MESSAGE)
    for _ in range(60):
        with (
            suppress(OSError, EOFError),
            client(service.port, timeout_seconds=1, window=dice.choice((0, 100, 65_535))) as raw,
        ):
            for _ in range(dice.randint(1, 4)):
                call = raw.call(dice.choice((INFER, STREAM, READY, CHECK)))
                flags = END_STREAM if dice.random() < 0.5 else 0
                raw.socket.sendall(frame(DATA, flags, call, message[: dice.randint(1, len(message))]))
            for _ in range(dice.randint(0, 6)):
                payload = dice.randbytes(dice.choice((0, 4, 5, 8, 40)))
                kind = dice.choice([each for each in range(11) if each != HEADERS])
                raw.socket.sendall(frame(kind, dice.randint(0, 255), dice.randint(0, 9), payload))
            if dice.random() < 0.3:
                raw.socket.sendall(frame(RST_STREAM, 0, 1, bytes(4)))
            if dice.random() < 0.5:
                raw.read()
            if dice.random() < 0.5:  # the connection is reset instead of closed
                raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert service.is_served()
    assert not [event for event in service.gateway.faults(offset) if event["event"] != "request"]
