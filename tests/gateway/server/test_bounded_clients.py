"""HTTP clients that are silent, slow or many keep nobody else out."""

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from tests.doubles.backend import PNG
from tests.doubles.program import PROGRAM
from tests.processes import Gateway, running_gateway, wait_for

MIB = 2**20
MAX_CONNECTIONS = 20
UPLOAD = b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: image/png\r\nContent-Length: 4000000\r\n\r\n"
Response = Callable[[], tuple[int, str]]


@contextmanager
def limited(folder: Path, seconds: float) -> Iterator[Gateway]:
    options = {
        "max_connections": MAX_CONNECTIONS,
        "max_bytes_waiting": 8 * MIB,
        "max_file_bytes": 4 * MIB,
        "upload_idle_timeout_seconds": seconds,
        "upload_timeout_seconds": 120,
        "answer_timeout_seconds": seconds,
        "log_level": "warning",
    }
    with running_gateway(folder / "log", program=PROGRAM, **options) as gateway:
        yield gateway
        assert all(event["event"] == "request" for event in gateway.faults())


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """Its limits end no client that only a busy machine delays."""
    with limited(tmp_path_factory.mktemp("bounded"), 100) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def hasty_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """Clients have two seconds to send and to read."""
    with limited(tmp_path_factory.mktemp("hasty"), 2) as gateway:
        yield gateway


def connect(gateway: Gateway) -> socket.socket:
    return socket.create_connection(("127.0.0.1", gateway.port), timeout=30)


def is_served(gateway: Gateway, padding: int = 0) -> bool:
    """Whether a client on a new connection gets its image classified."""
    files = {"f": ("c.png", PNG + bytes(padding))}
    return httpx.post(f"{gateway.url}/predict", files=files, timeout=60).status_code == 200


def upload(gateway: Gateway, stack: ExitStack, nbytes: int) -> Response:
    """Begin an upload on a connection of its own; returns what waits for its status and body."""
    connection = stack.enter_context(connect(gateway))
    connection.sendall(UPLOAD + bytes(nbytes))

    def response() -> tuple[int, str]:
        received = b""
        while not received.endswith(b"}") and (piece := connection.recv(65_536)):
            received += piece
        return int(received[9:12]), received.decode()

    return response


def test_connections_are_owned(gateway: Gateway):
    """Each is counted from accept to close."""
    wait_for(lambda: gateway.metric("gateway_connections") <= 1)
    with ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(connect(gateway))
        wait_for(lambda: gateway.metric("gateway_connections") >= 4)
    wait_for(lambda: gateway.metric("gateway_connections") <= 1)


def test_first_request_has_a_deadline(hasty_gateway: Gateway):
    with connect(hasty_gateway) as connection:
        connection.sendall(b"POST /pre")
        began = time.monotonic()
        with contextlib.suppress(ConnectionError):
            while connection.recv(65_536):
                pass
        assert 0.5 < time.monotonic() - began < 20


def test_body_has_a_deadline(hasty_gateway: Gateway):
    with ExitStack() as stack:
        assert upload(hasty_gateway, stack, 10)()[0] == 408


def test_bytes_are_counted_as_they_arrive(gateway: Gateway):
    with ExitStack() as stack:
        for _ in range(4):
            upload(gateway, stack, MIB)
        wait_for(lambda: gateway.metric("gateway_waiting_bytes") >= 4 * MIB)
        assert gateway.metric("gateway_waiting_bytes") < 5 * MIB
    wait_for(lambda: gateway.metric("gateway_waiting_bytes") == 0)


def test_unread_response_ends_its_connection(hasty_gateway: Gateway):
    closed = 'gateway_connections_closed_total{reason="unread"}'
    before = hasty_gateway.metric(closed)
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        connection.connect(("127.0.0.1", hasty_gateway.port))
        connection.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 200)
        wait_for(lambda: hasty_gateway.metric(closed) > before)


def test_connections_are_bounded(gateway: Gateway):
    """Idle connections beyond the limit keep no newcomer out."""
    with ExitStack() as stack:
        for _ in range(4 * MAX_CONNECTIONS):
            stack.enter_context(connect(gateway))
        assert is_served(gateway)


def test_silent_clients_are_evicted(gateway: Gateway):
    """Uploads that have stopped hold every connection, and new clients and health checks are served."""
    with ExitStack() as stack:
        for _ in range(2 * MAX_CONNECTIONS):
            upload(gateway, stack, 10)
        assert httpx.get(f"{gateway.url}/health/live", timeout=60).status_code == 200
        assert is_served(gateway)


def test_fast_uploads_evict_slow_ones(gateway: Gateway):
    before = gateway.metric("gateway_uploads_displaced_total")
    with ExitStack() as stack:
        responses = [upload(gateway, stack, MIB) for _ in range(10)]
        wait_for(lambda: is_served(gateway, padding=3 * MIB // 2))
        assert gateway.metric("gateway_uploads_displaced_total") > before
        assert gateway.metric("gateway_waiting_bytes") <= 8 * MIB
        # The oldest first: the others' answers would take 20 s.
        answers = (response() for response in responses)
        assert any(status == 503 and '"limit":"max_bytes_waiting"' in body for status, body in answers)


def test_stop_has_a_deadline(tmp_path):
    """A client that has begun a body, and one that has sent nothing."""
    with ExitStack() as stack:
        with running_gateway(tmp_path / "log", program=PROGRAM, shutdown_grace_seconds=2) as gateway:
            upload(gateway, stack, 10)
            stack.enter_context(connect(gateway))
            began = time.monotonic()
        assert time.monotonic() - began < 15
