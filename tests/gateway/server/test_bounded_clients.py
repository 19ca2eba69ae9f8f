"""HTTP clients that are silent, slow, greedy or many cost only themselves."""

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from tests.attack.target import Target, receive
from tests.doubles.backend import PNG
from tests.doubles.program import PROGRAM
from tests.processes import Gateway, running_gateway, wait_for

MIB = 2**20
MAX_CONNECTIONS = 20
SETTINGS = {
    "max_connections": MAX_CONNECTIONS,
    "max_bytes_waiting": 8 * MIB,
    "max_file_bytes": 4 * MIB,
    "upload_timeout_seconds": 300,
    "log_level": "warning",
}
PATIENT = dict.fromkeys(("upload_idle_timeout_seconds", "answer_timeout_seconds"), 100)
"""Limits that end no client that only a busy machine delays."""
HASTY = dict.fromkeys(PATIENT, 4)
PART = b'--b\r\nContent-Disposition: form-data; name="f"; filename="x.png"\r\n\r\n'
IMAGES = b"".join(PART + PNG + b"\r\n" for _ in range(90)) + b"--b--\r\n"
ALONE = pytest.mark.alone
"""These tests compare speeds, which other processes would change."""


MODULES = ("gateway.api.body", "gateway.server.connection")
SLOW = "".join(f"import {name}\n{name}.MIN_UPLOAD_BYTES_PER_SECOND = 1_000\n" for name in MODULES)
"""Uploads may be slower than 1,000 bytes a second for `upload_idle_timeout_seconds`."""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    log = tmp_path_factory.mktemp("patient") / "log"
    with running_gateway(log, program=SLOW + PROGRAM, **SETTINGS, **PATIENT) as running:
        yield running
        assert all(event["event"] == "request" for event in running.faults())


@pytest.fixture(scope="module")
def hasty_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    log = tmp_path_factory.mktemp("hasty") / "log"
    with running_gateway(log, program=SLOW + PROGRAM, **SETTINGS, **HASTY) as running:
        yield running
        assert all(event["event"] == "request" for event in running.faults())


def is_served(gateway: Gateway, padding: int = 0) -> bool:
    """Whether a client on a new connection gets its image classified."""
    files = {"f": ("c.png", PNG + bytes(padding))}
    return httpx.post(f"{gateway.url}/predict", files=files, timeout=60).status_code == 200


def post(length: int, query: bytes = b"") -> bytes:
    """The head of an upload."""
    lines = (b"POST /predict%b HTTP/1.1" % query, b"Host: x", b"Content-Type: multipart/form-data; boundary=b")
    return b"\r\n".join((*lines, b"Content-Length: %d" % length)) + b"\r\n\r\n"


MANY_CLASSES = post(len(IMAGES), b"?top_k=1000") + IMAGES
"""A request that has a large response."""


def begin(gateway: Gateway, stack: ExitStack, nbytes: int = 10) -> socket.socket:
    """A connection on which the body of an upload of 4 MB has begun."""
    connection = stack.enter_context(gateway.connect(30))
    connection.sendall(post(4_000_000) + PART + bytes(nbytes))
    return connection


def answer_of(connection: socket.socket) -> tuple[int, dict[str, Any]]:
    """Status and body of a response, which must be complete."""
    received = receive(connection, 60)
    return int(received[9:12]), json.loads(received.partition(b"\r\n\r\n")[2])


def test_connections_are_owned(gateway: Gateway):
    """Each is counted from accept to close."""
    wait_for(lambda: gateway.metric("gateway_connections") <= 1)
    with ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(gateway.connect())
        wait_for(lambda: gateway.metric("gateway_connections") >= 4)
    wait_for(lambda: gateway.metric("gateway_connections") <= 1)


def test_bytes_are_counted_as_they_arrive(gateway: Gateway):
    with ExitStack() as stack:
        for _ in range(4):
            begin(gateway, stack, MIB)
        wait_for(lambda: gateway.metric("gateway_waiting_bytes") >= 4 * MIB)
        assert gateway.metric("gateway_waiting_bytes") < 5 * MIB
    wait_for(lambda: gateway.metric("gateway_waiting_bytes") == 0)


def test_connections_are_bounded(gateway: Gateway):
    """Idle connections beyond the limit keep no newcomer out."""
    with ExitStack() as stack:
        for _ in range(4 * MAX_CONNECTIONS):
            stack.enter_context(gateway.connect())
        assert is_served(gateway)


def test_silent_clients_are_evicted(gateway: Gateway):
    """Uploads that have stopped hold every connection, and new clients and health checks are served."""
    with ExitStack() as stack:
        for _ in range(2 * MAX_CONNECTIONS):
            begin(gateway, stack)
        assert httpx.get(f"{gateway.url}/health/live", timeout=60).status_code == 200
        assert is_served(gateway)


def test_fast_uploads_evict_slow_ones(gateway: Gateway):
    before = gateway.metric("gateway_uploads_displaced_total")
    with ExitStack() as stack:
        slow = [begin(gateway, stack, MIB) for _ in range(10)]
        wait_for(lambda: is_served(gateway, padding=3 * MIB // 2))
        assert gateway.metric("gateway_uploads_displaced_total") > before
        assert gateway.metric("gateway_waiting_bytes") <= 8 * MIB
        # The oldest first: the others' answers would take 20 s.
        answers = map(answer_of, slow)
        assert any(status == 503 and body["limit"] == "max_bytes_waiting" for status, body in answers)


@pytest.mark.parametrize(
    ("sent", "drip"),
    [(b"", b""), (b"", b"\r\n"), (b"POST /pre", b""), (b"GET /health/live HTTP/1.1\r\nHost: x\r\nA: ", b"x")],
    ids=["nothing", "empty lines", "half a line", "a header without end"],
)
def test_first_request_has_a_deadline(hasty_gateway: Gateway, sent: bytes, drip: bytes):
    """It ends sooner than by the default of 20 s."""
    began = time.monotonic()
    with hasty_gateway.connect(30) as connection, contextlib.suppress(ConnectionError):
        connection.sendall(sent)
        connection.settimeout(0.1)
        while time.monotonic() - began < 18:
            with contextlib.suppress(TimeoutError):
                connection.sendall(drip)
                if not connection.recv(65_536):
                    break
    assert time.monotonic() - began < 18


def test_unread_response_ends_its_connection(hasty_gateway: Gateway):
    closed = 'gateway_connections_closed_total{reason="unread"}'
    before = hasty_gateway.metric(closed)
    with Target(hasty_gateway.port).connect(receive_bytes=4_096) as connection:
        connection.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 200)
        wait_for(lambda: hasty_gateway.metric(closed) > before)


@pytest.mark.slow
def test_upload_below_the_minimum_speed_ends_after_its_grace(hasty_gateway: Gateway):
    with ExitStack() as stack:
        slow = begin(hasty_gateway, stack)
        started = time.monotonic()
        slow.settimeout(0.1)
        while True:
            slow.sendall(bytes(10))
            try:
                if slow.recv(1, socket.MSG_PEEK):
                    break
            except TimeoutError:
                assert time.monotonic() - started < 30
        slow.settimeout(30)
        assert time.monotonic() - started > 3
        status, problem = answer_of(slow)
    assert (status, problem["code"]) == (408, "upload_timeout")
    assert (problem["limit"], problem["value"]) == ("min_upload_bytes_per_second", 1_000)


@ALONE
@pytest.mark.slow
def test_stalled_readers_are_evicted_for_active_ones(tmp_path):
    unread = 'gateway_connections_closed_total{reason="unread"}'
    settings = {**SETTINGS, **PATIENT, "max_bytes_unread": 2 * MIB}
    with running_gateway(tmp_path / "log", program=PROGRAM, **settings) as patient:

        def is_answered() -> bool:
            with patient.connect(30) as client:
                client.sendall(MANY_CLASSES)
                status, answer = answer_of(client)
            assert status == 200 or answer["limit"] == "max_bytes_unread"
            return status == 200

        with Target(patient.port).connect(receive_bytes=4_096) as stalled:
            stalled.sendall(MANY_CLASSES)
            # While it holds more than there is room for, no other answer is begun, and none can take room from it.
            wait_for(lambda: patient.metric("gateway_answer_bytes") > 2 * MIB)
            wait_for(is_answered)
            with contextlib.suppress(ConnectionResetError):
                while stalled.recv(65_536):
                    pass  # it ends
        wait_for(lambda: patient.metric(unread) == 1)
        wait_for(lambda: patient.metric("gateway_answer_bytes") == 0)


@ALONE
@pytest.mark.slow
def test_slow_but_steady_reader_gets_its_whole_response(hasty_gateway: Gateway):
    with Target(hasty_gateway.port).connect(receive_bytes=64 * 1_024) as slow:
        slow.sendall(MANY_CLASSES.replace(b"Host: x", b"Host: x\r\nConnection: close"))
        received = bytearray()
        while piece := slow.recv(256 * 1_024):
            received += piece
            time.sleep(0.02)  # the client's slowness
    head, _, content = bytes(received).partition(b"\r\n\r\n")
    assert b" 200 " in head.partition(b"\r\n")[0]
    assert content.rstrip(b"\r\n0").endswith(b'"failed":0}}')


def test_stop_has_a_deadline(tmp_path):
    """A client that has begun a body, and one that has sent nothing."""
    with ExitStack() as stack:
        with running_gateway(tmp_path / "log", program=PROGRAM, shutdown_grace_seconds=2) as gateway:
            begin(gateway, stack)
            stack.enter_context(gateway.connect())
            began = time.monotonic()
        assert time.monotonic() - began < 15
