"""Calls that cost others nothing: each was once enough to stop the service, or to keep everybody else out."""

import contextlib
import random
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import grpc
import pytest
from h2.exceptions import ProtocolError
from tritonclient.grpc import service_pb2

from bench.attack.http2 import (
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
    RawClient,
    client,
    frame,
    goaway_after,
    prefixed,
)
from gateway_plugins.keys.key_file import add_key
from gateway_plugins.keys.quota import read_quota
from tests.doubles.backend import PNG
from tests.doubles.program import PROGRAM
from tests.plugins.oip.grpc_api.serving import request
from tests.processes import Gateway, free_port, running_gateway, wait_for

MIB = 2**20
OK, INVALID, NOT_FOUND, UNAVAILABLE = (
    grpc.StatusCode[name].value[0] for name in ("OK", "INVALID_ARGUMENT", "NOT_FOUND", "UNAVAILABLE")
)
ENHANCE_YOUR_CALM = 11
READY = "/inference.GRPCInferenceService/ServerReady"
METADATA = "/inference.GRPCInferenceService/ModelMetadata"
MAX_CONNECTIONS, MAX_CALLS = 20, 12


class Service:
    """A gateway with a port for gRPC."""

    def __init__(self, gateway: Gateway, port: int) -> None:
        self.gateway = gateway
        self.port = port

    def is_served(self, key: str = "") -> bool:
        """Whether a client on a new connection gets its image classified within 5 s."""
        with client(self.port, timeout_seconds=5.0) as raw:
            return raw.status(raw.call(INFER, request(PNG).SerializeToString(), key=key)) == OK

    def held_bytes(self) -> float:
        return self.gateway.metric("gateway_waiting_bytes")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    port = free_port()
    with running_gateway(
        tmp_path_factory.mktemp("grpc") / "log",
        program=PROGRAM,
        grpc_port=port,
        grpc_max_calls=MAX_CALLS,
        max_connections=MAX_CONNECTIONS,
        max_streams=4,
        max_file_bytes=2 * MIB,
        max_bytes_waiting=8 * MIB,
        answer_timeout_seconds=2,
        upload_idle_timeout_seconds=2,
        log_level="warning",
    ) as gateway:
        yield Service(gateway, port)
        assert [event for event in gateway.faults() if event["event"] != "request"] == []  # 503s are errors in the log


def upload(stack: ExitStack, port: int, nbytes: int, path: str = INFER, key: str = "") -> tuple[RawClient, int]:
    """Begin a message of 20 MiB on a connection of its own."""
    raw = stack.enter_context(client(port))
    call = raw.call(path, key=key)
    raw.send(call, b"\0" + (20 * MIB).to_bytes(4, "big") + bytes(nbytes))
    return raw, call


def field(number: int, payload: bytes = b"") -> bytes:
    assert len(payload) < 128
    return bytes([number << 3 | 2, len(payload)]) + payload


@pytest.mark.parametrize(
    "message",
    [
        field(5) * 500_000,
        field(6) * 500_000,
        field(4) * 500_000,
        field(7) * 500_000,
        field(6, field(2) * 60) * 8_000,
        field(5, field(5, field(8) * 60)) * 8_000,
        b"\x08\x01" * 500_000,
    ],
    ids=["inputs", "outputs", "parameters", "images", "nested", "elements", "numbers"],
)
def test_members_are_counted_before_they_are_built(service: Service, message: bytes):
    """1 MB of empty members took 9.6 s of the event loop and 492 MB."""
    before = service.gateway.resident_bytes()
    with client(service.port) as raw:
        assert raw.status(raw.call(INFER, message)) == INVALID
        assert raw.status(raw.call(STREAM, message)) == OK  # of a stream, the message has an error
    assert service.gateway.metric("gateway_event_loop_pause_seconds") < 1
    assert service.gateway.resident_bytes() - before < 50 * MIB


def test_unread_responses_give_way(service: Service):
    """300 calls whose client reads nothing held every call for 70 minutes."""
    with ExitStack() as stack:
        unread = []
        for _ in range(MAX_CALLS):
            raw = stack.enter_context(client(service.port, window=0))
            unread.append((raw, raw.call(READY, b"")))
        wait_for(service.is_served)
        for raw, call in unread[2:]:
            assert raw.status(call) == -1, "reset after answer_timeout_seconds"


def test_unread_streams_give_way(tmp_path):
    """64 streams that nobody read held all streams; the time to read is longer here than the test."""
    port = free_port()
    options = {"grpc_port": port, "max_streams": 4, "answer_timeout_seconds": 300, "max_bytes_unread": 8 * MIB}
    message = request(PNG).SerializeToString()
    with running_gateway(tmp_path / "log", program=PROGRAM, **options) as gateway, ExitStack() as stack:
        for _ in range(4):
            raw = stack.enter_context(client(port, window=0))
            stream = raw.call(STREAM, message, ends=False)
            for _ in range(3):
                raw.send(stream, prefixed(message))
        wait_for(lambda: _streams(Service(gateway, port)), timeout_seconds=20)


def _streams(service: Service) -> bool:
    with client(service.port) as raw:
        stream = raw.call(STREAM, request(PNG).SerializeToString())
        return raw.status(stream) == OK and len(raw.data.get(stream, b"")) > 0


def test_silent_calls_keep_nobody_out(service: Service):
    """60 silent calls a second starved all others, health checks included."""
    ended = threading.Event()

    def flood() -> None:
        with ExitStack() as stack:
            connections = [stack.enter_context(client(service.port)) for _ in range(4)]
            number = 0
            while not ended.wait(0.01):
                connections[number % 4].call(INFER if number % 2 else CHECK)
                number += 1

    flooding = threading.Thread(target=flood)
    flooding.start()
    try:
        for _ in range(20):
            assert service.is_served()
            with client(service.port, timeout_seconds=5) as raw:
                assert raw.status(raw.call(CHECK, b"")) == OK
    finally:
        ended.set()
        flooding.join()


@pytest.mark.parametrize("path", [INFER, STREAM])
def test_uploads_are_counted_as_they_arrive(service: Service, path: str):
    """64 streams uploaded 1.6 GB of which nothing was counted."""
    with ExitStack() as stack:
        for _ in range(4):
            upload(stack, service.port, MIB, path)
        wait_for(lambda: service.held_bytes() >= 4 * MIB)
        assert service.held_bytes() < 5 * MIB
    wait_for(lambda: service.held_bytes() == 0)


def test_path_in_a_model_name_is_no_route(service: Service):
    """It was INTERNAL with a traceback."""
    with client(service.port) as raw:
        name = service_pb2.ModelMetadataRequest(name="ensemble_model/ready").SerializeToString()
        version = service_pb2.ModelMetadataRequest(name="ensemble_model", version="1/ready").SerializeToString()
        assert [raw.status(raw.call(METADATA, each)) for each in (name, version)] == [NOT_FOUND, NOT_FOUND]
        ready = "/inference.GRPCInferenceService/ModelReady"
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
    goaway_after(service.port, data)
    assert service.gateway.resident_bytes() - before < 10 * MIB
    assert service.is_served()


def test_floods_on_calls_end_the_connection(service: Service):
    for kind, flags, payload in ((DATA, 0, b""), (RST_STREAM, 0, b"\0\0\0\x08")):
        with client(service.port) as raw:
            call = raw.call(INFER)
            flood = frame(kind, flags, call, payload) * 1_500
            raw.socket.sendall(flood)
            assert raw.until_closed() == ENHANCE_YOUR_CALM
    assert service.is_served()


def test_calls_that_are_reset_at_once_end_no_other(service: Service):
    """A call and its reset arrive together, beside a call that waits for its message."""
    with client(service.port) as raw:
        waiting = raw.call(INFER)
        for _ in range(100):
            with raw.at_once():
                raw.reset(raw.call(INFER))
        raw.send(waiting, prefixed(request(PNG).SerializeToString()), ends=True)
        assert raw.status(waiting) == OK


def test_frame_or_headers_without_end_have_a_deadline(service: Service):
    for begun in (b"\0\0\x10\0", frame(HEADERS, 0, 1, b"\x82")):
        began = time.monotonic()
        assert goaway_after(service.port, begun) == ENHANCE_YOUR_CALM
        assert 1 < time.monotonic() - began < 20


def test_share_of_a_key_holds_for_its_uploads(tmp_path):
    """A key's share of the upload buffer did not hold."""
    greedy = add_key(tmp_path / "keys", "greedy", read_quota({"share": "0.1"}))
    other = add_key(tmp_path / "keys", "other", read_quota({"share": "0.5"}))
    port = free_port()
    options = {"api_keys_file": tmp_path / "keys", "max_file_bytes": MIB, "max_bytes_waiting": 10 * MIB}
    with running_gateway(tmp_path / "log", program=PROGRAM, grpc_port=port, **options) as gateway:
        service = Service(gateway, port)
        with ExitStack() as stack:
            calls = [upload(stack, port, 600_000, key=greedy) for _ in range(4)]
            assert service.held_bytes() <= MIB
            raw, last = calls[3]
            assert raw.status(last) == UNAVAILABLE
            assert service.is_served(other)


def test_stop_waits_for_no_client_that_does_not_read(tmp_path):
    """64 streams that nobody read delayed the stop by 35 s."""
    port = free_port()
    with ExitStack() as stack:
        with running_gateway(tmp_path / "log", program=PROGRAM, grpc_port=port, shutdown_grace_seconds=30):
            for _ in range(8):
                raw = stack.enter_context(client(port, window=0))
                raw.call(STREAM, request(PNG).SerializeToString(), ends=False)
                raw.call(READY, b"")
            began = time.monotonic()
        assert time.monotonic() - began < 10


@pytest.mark.parametrize("seed", range(4))
def test_damaged_and_broken_off_calls_are_no_faults_of_the_service(service: Service, seed: int):
    """Frames in any order, with any content, on connections that end at any time."""
    dice = random.Random(seed)
    message = prefixed(request(PNG).SerializeToString())
    for _ in range(60):
        with (
            contextlib.suppress(ConnectionError, ProtocolError, Ended),
            client(service.port, window=dice.choice((0, 100, 65_535))) as raw,
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
    assert [event for event in service.gateway.faults() if event["event"] != "request"] == []
