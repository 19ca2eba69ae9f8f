"""The rules of the HTTP server hold for gRPC as well. Then attacks by what only HTTP/2 has.

Each attack was once enough to stop the service, or to keep everybody else out.
"""

import contextlib
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import httpx
import pytest
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError
from tritonclient.grpc import service_pb2

from gateway_plugins.keys.key_file import add_key
from gateway_plugins.keys.quota import read_quota
from tests.attack.http2 import (
    CHECK,
    CONTINUATION,
    DATA,
    HEADERS,
    INFER,
    PING,
    RST_STREAM,
    SETTINGS,
    STREAM,
    Ended,
    client,
    frame,
    goaway_after,
    prefixed,
)
from tests.doubles.backend import PNG
from tests.doubles.program import PROGRAM
from tests.plugins.oip.grpc_api.serving import request
from tests.processes import Gateway, free_port, running_gateway, wait_for

MIB = 2**20
SERVERS = ("http", "grpc")
BOTH = pytest.mark.parametrize("server", SERVERS)
MAX_CONNECTIONS, MAX_CALLS = 20, 12
UPLOAD = b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: image/png\r\nContent-Length: 4000000\r\n\r\n"
MESSAGE_PREFIX = b"\0" + (20 * MIB).to_bytes(4, "big")
OK, INVALID, DEADLINE, NOT_FOUND, UNAVAILABLE = (
    grpc.StatusCode[name].value[0]
    for name in ("OK", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "UNAVAILABLE")
)
READY = "/inference.GRPCInferenceService/ServerReady"
MESSAGE = request(PNG).SerializeToString()
Response = Callable[[], tuple[int, str]]


@dataclass(frozen=True)
class Service:
    """A gateway with a port for each server."""

    gateway: Gateway
    grpc_port: int

    def connect(self, server: str) -> socket.socket:
        port = self.gateway.port if server == "http" else self.grpc_port
        return socket.create_connection(("127.0.0.1", port), timeout=30)

    def is_served(self, server: str = "grpc", key: str = "", padding: int = 0) -> bool:
        """Whether a client on a new connection gets its image classified."""
        image = PNG + bytes(padding)
        if server == "http":
            files = {"f": ("c.png", image)}
            return httpx.post(f"{self.gateway.url}/predict", files=files, timeout=60).status_code == 200
        with client(self.grpc_port, timeout_seconds=60) as raw:
            return raw.status(raw.call(INFER, request(image).SerializeToString(), key=key)) == OK

    def upload(self, server: str, stack: ExitStack, nbytes: int, path: str = INFER, key: str = "") -> Response:
        """Begin an upload on a connection of its own; returns what waits for its status and, over HTTP, its body."""
        if server == "http":
            connection = stack.enter_context(self.connect("http"))
            connection.sendall(UPLOAD + bytes(nbytes))

            def response() -> tuple[int, str]:
                received = b""
                while not received.endswith(b"}") and (piece := connection.recv(65_536)):
                    received += piece
                return int(received[9:12]), received.decode()

            return response
        raw = stack.enter_context(client(self.grpc_port))
        call = raw.call(path, key=key)
        raw.send(call, MESSAGE_PREFIX + bytes(nbytes))
        return lambda: (raw.status(call), "")

    def has_faults(self, since: int = 0) -> bool:
        """Whether anything but a request was logged as an error, which a 503 is."""
        return any(event["event"] != "request" for event in self.gateway.faults(since))


@contextmanager
def running(folder: Path, **options: object) -> Iterator[Service]:
    port = free_port()
    with running_gateway(folder / "log", program=PROGRAM, grpc_port=port, **options) as gateway:
        yield Service(gateway, port)


@contextmanager
def limited(folder: Path, seconds: float) -> Iterator[Service]:
    options = {
        "grpc_max_calls": MAX_CALLS,
        "max_connections": MAX_CONNECTIONS,
        "max_streams": 4,
        "max_bytes_waiting": 8 * MIB,
        "max_file_bytes": 4 * MIB,
        "upload_idle_timeout_seconds": seconds,
        "upload_timeout_seconds": 120,
        "answer_timeout_seconds": seconds,
        "max_header_bytes": 16_384,
        "log_level": "warning",
    }
    with running(folder, **options) as service:
        yield service
        assert not service.has_faults()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Its limits end no client that only a busy machine delays."""
    with limited(tmp_path_factory.mktemp("rules"), 100) as service:
        yield service


@pytest.fixture(scope="module")
def hasty_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Clients have two seconds to send and to read."""
    with limited(tmp_path_factory.mktemp("hasty"), 2) as service:
        yield service


@BOTH
def test_connections_are_owned(service: Service, server: str):
    """Each is counted from accept to close, by both servers together."""
    wait_for(lambda: service.gateway.metric("gateway_connections") <= 1)
    with ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(service.connect(server))
        wait_for(lambda: service.gateway.metric("gateway_connections") >= 4)
    wait_for(lambda: service.gateway.metric("gateway_connections") <= 1)


@BOTH
def test_first_request_has_a_deadline(hasty_service: Service, server: str):
    with hasty_service.connect(server) as connection:
        connection.sendall(b"POST /pre" if server == "http" else b"PRI * HTT")
        began = time.monotonic()
        with contextlib.suppress(ConnectionError):
            while connection.recv(65_536):
                pass
        assert 0.5 < time.monotonic() - began < 20


@BOTH
def test_message_has_a_deadline(hasty_service: Service, server: str):
    with ExitStack() as stack:
        assert hasty_service.upload(server, stack, 10)()[0] == (408 if server == "http" else DEADLINE)


@pytest.mark.parametrize(("server", "path"), [("http", ""), ("grpc", INFER), ("grpc", STREAM)])
def test_bytes_are_counted_as_they_arrive(service: Service, server: str, path: str):
    """64 streams uploaded 1.6 GB of which nothing was counted."""
    with ExitStack() as stack:
        for _ in range(4):
            service.upload(server, stack, MIB, path)
        wait_for(lambda: service.gateway.metric("gateway_waiting_bytes") >= 4 * MIB)
        assert service.gateway.metric("gateway_waiting_bytes") < 5 * MIB
    wait_for(lambda: service.gateway.metric("gateway_waiting_bytes") == 0)


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


def test_members_of_messages_are_counted(service: Service):
    """1 MB of empty members took 9.6 s of the event loop and 492 MB."""
    before = service.gateway.resident_bytes()
    for name, message in MEMBERS.items():
        with client(service.grpc_port) as raw:
            assert raw.status(raw.call(INFER, message)) == INVALID, name
            assert raw.status(raw.call(STREAM, message)) == OK, name  # of a stream, the message has an error
    assert service.gateway.metric("gateway_event_loop_pause_seconds") < 1
    assert service.gateway.resident_bytes() - before < 50 * MIB


def test_unread_response_ends_its_connection(hasty_service: Service):
    closed = 'gateway_connections_closed_total{reason="unread"}'
    before = hasty_service.gateway.metric(closed)
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        connection.connect(("127.0.0.1", hasty_service.gateway.port))
        connection.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 200)
        wait_for(lambda: hasty_service.gateway.metric(closed) > before)


def test_unread_responses_give_way(hasty_service: Service):
    """300 calls whose client reads nothing held every call for 70 minutes."""
    with ExitStack() as stack:
        unread = []
        for _ in range(MAX_CALLS):
            raw = stack.enter_context(client(hasty_service.grpc_port, window=0))
            unread.append((raw, raw.call(READY, b"")))
        wait_for(hasty_service.is_served)
        for raw, call in unread[2:]:
            assert raw.status(call) == -1, "reset after answer_timeout_seconds"


def test_header_blocks_are_bounded(service: Service):
    block = frame(HEADERS, 0, 1, b"\x82") + frame(CONTINUATION, 0, 1, bytes(10_000)) * 2
    assert goaway_after(service.grpc_port, block) == ErrorCodes.ENHANCE_YOUR_CALM


@BOTH
def test_connections_are_bounded(service: Service, server: str):
    """Idle connections beyond the limit keep no newcomer out, of either server."""
    with ExitStack() as stack:
        for _ in range(4 * MAX_CONNECTIONS):
            stack.enter_context(service.connect(server))
        assert all(service.is_served(each) for each in SERVERS)


@BOTH
def test_silent_clients_are_evicted(service: Service, server: str):
    """Uploads that have stopped hold every connection, and new clients and health checks are served."""
    with ExitStack() as stack:
        for _ in range(2 * MAX_CONNECTIONS):
            service.upload(server, stack, 10)
        assert httpx.get(f"{service.gateway.url}/health/live", timeout=60).status_code == 200
        raw = stack.enter_context(client(service.grpc_port, timeout_seconds=60))
        assert raw.status(raw.call(CHECK, b"")) == OK
        assert all(service.is_served(each) for each in SERVERS)


@BOTH
def test_fast_uploads_evict_slow_ones(service: Service, server: str):
    before = service.gateway.metric("gateway_uploads_displaced_total")
    with ExitStack() as stack:
        responses = [service.upload(server, stack, MIB) for _ in range(10)]
        wait_for(lambda: service.is_served(server, padding=3 * MIB // 2))
        assert service.gateway.metric("gateway_uploads_displaced_total") > before
        assert service.gateway.metric("gateway_waiting_bytes") <= 8 * MIB
        evicted, why = (503, '"limit":"max_bytes_waiting"') if server == "http" else (UNAVAILABLE, "")
        # The oldest first: the others' answers would take 20 s.
        assert any(status == evicted and why in body for status, body in (response() for response in responses))


@BOTH
def test_stop_has_a_deadline(tmp_path, server: str):
    """A client that has begun a message, and one that has none."""
    with ExitStack() as stack:
        with running(tmp_path, shutdown_grace_seconds=2) as service:
            service.upload(server, stack, 10)
            stack.enter_context(service.connect(server))
            began = time.monotonic()
        assert time.monotonic() - began < 15


def test_stop_waits_for_no_client_that_does_not_read(tmp_path):
    """Open streams whose client reads nothing do not delay the stop."""
    with ExitStack() as stack:
        with running(tmp_path, shutdown_grace_seconds=30) as service:
            for _ in range(8):
                raw = stack.enter_context(client(service.grpc_port, window=0))
                raw.call(STREAM, MESSAGE, ends=False)
                raw.call(READY, b"")
            began = time.monotonic()
        assert time.monotonic() - began < 10


def test_unread_streams_give_way(tmp_path):
    """Streams whose client reads nothing leave room for others, long before their time to read is over."""
    options = {"max_streams": 4, "answer_timeout_seconds": 300, "max_bytes_unread": 8 * MIB}
    with running(tmp_path, **options) as service, ExitStack() as stack:
        for _ in range(4):
            raw = stack.enter_context(client(service.grpc_port, window=0))
            stream = raw.call(STREAM, MESSAGE, ends=False)
            for _ in range(3):
                raw.send(stream, prefixed(MESSAGE))

        def is_answered() -> bool:
            with client(service.grpc_port) as raw:
                stream = raw.call(STREAM, MESSAGE)
                return raw.status(stream) == OK and len(raw.data.get(stream, b"")) > 0

        wait_for(is_answered)


def test_silent_calls_keep_nobody_out(service: Service):
    """60 silent calls a second starved all others, health checks included."""
    ended = threading.Event()

    def flood() -> None:
        with ExitStack() as stack:
            connections = [stack.enter_context(client(service.grpc_port)) for _ in range(4)]
            number = 0
            while not ended.wait(0.01):
                connections[number % 4].call(INFER if number % 2 else CHECK)
                number += 1

    flooding = threading.Thread(target=flood)
    flooding.start()
    try:
        for _ in range(20):
            assert service.is_served()
            with client(service.grpc_port, timeout_seconds=60) as raw:
                assert raw.status(raw.call(CHECK, b"")) == OK
    finally:
        ended.set()
        flooding.join()


def test_path_in_a_model_name_is_no_route(service: Service):
    """It was INTERNAL with a traceback."""
    with client(service.grpc_port) as raw:
        name = service_pb2.ModelMetadataRequest(name="ensemble_model/ready").SerializeToString()
        version = service_pb2.ModelMetadataRequest(name="ensemble_model", version="1/ready").SerializeToString()
        metadata, ready = (f"/inference.GRPCInferenceService/{name}" for name in ("ModelMetadata", "ModelReady"))
        assert [raw.status(raw.call(metadata, each)) for each in (name, version)] == [NOT_FOUND, NOT_FOUND]
        call = raw.call(ready, name)
        assert (raw.status(call), raw.data.get(call)) == (OK, prefixed(b""))
        assert raw.status(raw.call(INFER, request(PNG, model="ensemble_model/infer").SerializeToString())) == NOT_FOUND


@pytest.mark.parametrize(
    "data",
    [
        frame(HEADERS, 0, 1, b"\0") + frame(CONTINUATION, 0, 1, bytes(16_000)) * 2_000,
        frame(HEADERS, 0, 1, b"\0") + frame(CONTINUATION, 0, 1) * 20_000,
        frame(PING, 0, 0, bytes(8)) * 20_000,
        frame(SETTINGS, 0, 0) * 20_000,
    ],
    ids=["continuation", "empty continuation", "ping", "settings"],
)
def test_endless_frames_end_the_connection(service: Service, data: bytes):
    """An endless CONTINUATION of 30 MB was kept, and paused the event loop."""
    before = service.gateway.resident_bytes()
    goaway_after(service.grpc_port, data)
    assert service.gateway.resident_bytes() - before < 10 * MIB
    assert service.is_served()


def test_floods_on_calls_end_the_connection(service: Service):
    for kind, flags, payload in ((DATA, 0, b""), (RST_STREAM, 0, b"\0\0\0\x08")):
        with client(service.grpc_port) as raw:
            raw.socket.sendall(frame(kind, flags, raw.call(INFER), payload) * 1_500)
            assert raw.until_closed() == ErrorCodes.ENHANCE_YOUR_CALM
    assert service.is_served()


def test_call_that_waits_is_not_ended_by_others_of_its_connection(service: Service):
    """One is answered, and a hundred arrive together with their reset."""
    with client(service.grpc_port) as raw:
        waiting = raw.call(INFER)
        assert raw.status(raw.call(INFER, MESSAGE)) == OK
        for _ in range(100):
            with raw.at_once():
                raw.reset(raw.call(INFER))
        raw.send(waiting, prefixed(MESSAGE), ends=True)
        assert raw.status(waiting) == OK


def test_frame_or_headers_without_end_have_a_deadline(hasty_service: Service):
    for begun in (b"\0\0\x10\0", frame(HEADERS, 0, 1, b"\x82")):
        began = time.monotonic()
        assert goaway_after(hasty_service.grpc_port, begun) == ErrorCodes.ENHANCE_YOUR_CALM
        assert 1 < time.monotonic() - began < 20


def test_share_of_a_key_holds_for_its_uploads(tmp_path):
    """A key's share of the upload buffer did not hold."""
    greedy = add_key(tmp_path / "keys", "greedy", read_quota({"share": "0.1"}))
    other = add_key(tmp_path / "keys", "other", read_quota({"share": "0.5"}))
    options = {"api_keys_file": tmp_path / "keys", "max_file_bytes": MIB, "max_bytes_waiting": 10 * MIB}
    with running(tmp_path, **options) as service, ExitStack() as stack:
        *_, last = (service.upload("grpc", stack, 600_000, key=greedy) for _ in range(4))
        assert service.gateway.metric("gateway_waiting_bytes") <= MIB
        assert last()[0] == UNAVAILABLE
        assert service.is_served(key=other)


@pytest.mark.parametrize("seed", range(4))
def test_damaged_and_broken_off_calls_are_no_faults_of_the_service(service: Service, seed: int):
    """Frames in any order, with any content, on connections that end at any time."""
    dice, offset = random.Random(seed), service.gateway.log.stat().st_size
    message = prefixed(MESSAGE)
    for _ in range(60):
        with (
            contextlib.suppress(ConnectionError, ProtocolError, Ended),
            client(service.grpc_port, window=dice.choice((0, 100, 65_535))) as raw,
        ):
            for _ in range(dice.randint(1, 4)):
                call = raw.call(dice.choice((INFER, STREAM, READY, CHECK)))
                raw.send(call, message[: dice.randint(1, len(message))], ends=dice.random() < 0.5)
            for _ in range(dice.randint(0, 6)):
                flags, stream = dice.randint(0, 255), dice.randint(0, 9)
                payload = dice.randbytes(dice.choice((0, 4, 5, 8, 40)))
                raw.socket.sendall(frame(dice.randint(0, 10), flags, stream, payload))
            if dice.random() < 0.5:
                raw.read()
            if dice.random() < 0.5:  # the connection is reset instead of closed
                raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert service.is_served()
    assert not service.has_faults(offset)
