"""The rules of the HTTP server × the servers: each rule holds for both."""

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import httpx
import pytest
from h2.errors import ErrorCodes

from bench.attack.http2 import (
    CHECK,
    CONTINUATION,
    HEADERS,
    INFER,
    RawClient,
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
MAX_CONNECTIONS = 12
UPLOAD = b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: image/png\r\nContent-Length: 4000000\r\n\r\n"
MESSAGE_PREFIX = b"\0" + (4_000_000).to_bytes(4, "big")
INVALID, DEADLINE, UNAVAILABLE = 3, 4, 14


@dataclass(frozen=True)
class Service:
    """A gateway with a port for each server."""

    gateway: Gateway
    grpc_port: int

    def port(self, server: str) -> int:
        return self.gateway.port if server == "http" else self.grpc_port

    def connect(self, server: str) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port(server)), timeout=30)

    def is_served(self, server: str) -> bool:
        """Whether a client on a new connection gets its image classified."""
        if server == "http":
            return httpx.post(f"{self.gateway.url}/predict", files={"f": ("c.png", PNG)}, timeout=10).status_code == 200
        with client(self.grpc_port, timeout_seconds=10) as raw:
            return raw.status(raw.call(INFER, request(PNG).SerializeToString())) == 0

    def upload(self, server: str, stack: ExitStack, nbytes: int) -> Callable[[], int]:
        """Begin an upload; returns what waits for its status."""
        if server == "http":
            connection = stack.enter_context(self.connect("http"))
            connection.sendall(UPLOAD + bytes(nbytes))
            return lambda: int(connection.recv(65_536)[9:12])
        raw = stack.enter_context(client(self.grpc_port))
        call = raw.call(INFER)
        raw.send(call, MESSAGE_PREFIX + bytes(nbytes))
        return lambda: raw.status(call)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    port = free_port()
    options = {
        "grpc_port": port,
        "max_connections": MAX_CONNECTIONS,
        "max_bytes_waiting": 8 * MIB,
        "max_file_bytes": 4 * MIB,
        "upload_idle_timeout_seconds": 1,
        "answer_timeout_seconds": 1,
        "max_header_bytes": 16_384,
        "log_level": "warning",
    }
    with running_gateway(tmp_path_factory.mktemp("rules") / "log", program=PROGRAM, **options) as gateway:
        yield Service(gateway, port)
        assert [event for event in gateway.faults() if event["event"] != "request"] == []  # 503s are errors in the log


def connections_are_owned(service: Service, server: str) -> None:
    """Each is counted from accept to close, by both servers together."""
    wait_for(lambda: service.gateway.metric("gateway_connections") <= 1)
    with ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(service.connect(server))
        wait_for(lambda: service.gateway.metric("gateway_connections") >= 4)
    wait_for(lambda: service.gateway.metric("gateway_connections") <= 1)


def first_request_has_a_deadline(service: Service, server: str) -> None:
    with service.connect(server) as connection:
        connection.sendall(b"POST /pre" if server == "http" else b"PRI * HTT")
        began = time.monotonic()
        with contextlib.suppress(ConnectionError):
            while connection.recv(65_536):
                pass
        assert 0.5 < time.monotonic() - began < 20


def message_has_a_deadline(service: Service, server: str) -> None:
    with ExitStack() as stack:
        assert service.upload(server, stack, 10)() == (408 if server == "http" else DEADLINE)


def bytes_are_counted_as_they_arrive(service: Service, server: str) -> None:
    with ExitStack() as stack:
        service.upload(server, stack, MIB)
        wait_for(lambda: service.gateway.metric("gateway_waiting_bytes") >= MIB)
    wait_for(lambda: service.gateway.metric("gateway_waiting_bytes") == 0)


def members_are_counted_before_they_are_translated(service: Service, server: str) -> None:
    """A description beyond `max_header_bytes` is refused, however it is nested."""
    if server == "http":
        body = b'{"inputs":[' + b"{}," * 10_000 + b"{}]}"
        headers = {"Inference-Header-Content-Length": str(len(body)), "Content-Type": "application/octet-stream"}
        url = f"{service.gateway.url}/v2/models/ensemble_model/infer"
        assert httpx.post(url, content=body, headers=headers).status_code in {422, 431}
        return
    with client(service.grpc_port) as raw:
        assert raw.status(raw.call(INFER, b"\x2a\x00" * 10_000)) == INVALID


def unread_responses_have_a_deadline(service: Service, server: str) -> None:
    closed = 'gateway_connections_closed_total{reason="unread"}'
    before = service.gateway.metric(closed)
    with ExitStack() as stack:
        if server == "http":
            connection = stack.enter_context(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            connection.connect(("127.0.0.1", service.gateway.port))
            connection.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 200)
        else:
            raw = stack.enter_context(client(service.grpc_port, window=0))
            raw.call(INFER, request(PNG).SerializeToString())
        wait_for(lambda: service.gateway.metric(closed) > before, timeout_seconds=30)


def header_blocks_are_bounded(service: Service, server: str) -> None:
    if server == "http":
        answer = httpx.get(f"{service.gateway.url}/health/live", headers={"x": "y" * 20_000})
        assert answer.status_code == 431
        return
    block = frame(HEADERS, 0, 1, b"\x82") + frame(CONTINUATION, 0, 1, bytes(10_000)) * 2
    assert goaway_after(service.grpc_port, block) == ErrorCodes.ENHANCE_YOUR_CALM


def connections_are_bounded(service: Service, server: str) -> None:
    """Idle connections beyond the limit keep no newcomer out, of either server."""
    with ExitStack() as stack:
        for _ in range(4 * MAX_CONNECTIONS):
            stack.enter_context(service.connect(server))
        assert all(service.is_served(each) for each in SERVERS)


def silent_clients_are_evicted(service: Service, server: str) -> None:
    """Uploads that have stopped hold every connection, and new clients are served."""
    with ExitStack() as stack:
        for _ in range(2 * MAX_CONNECTIONS):
            service.upload(server, stack, 10)
        assert all(service.is_served(each) for each in SERVERS)


def fast_uploads_evict_slow_ones(service: Service, server: str) -> None:
    with ExitStack() as stack:
        statuses = [service.upload(server, stack, MIB) for _ in range(10)]
        assert service.is_served(server)
        assert service.gateway.metric("gateway_waiting_bytes") <= 8 * MIB
        assert (503 if server == "http" else UNAVAILABLE) in {status() for status in statuses}


def probes_need_no_slot(service: Service, server: str) -> None:
    with ExitStack() as stack:
        for _ in range(2 * MAX_CONNECTIONS):
            service.upload(server, stack, 10)
        if server == "http":
            assert httpx.get(f"{service.gateway.url}/health/live", timeout=5).status_code == 200
            return
        raw = stack.enter_context(client(service.grpc_port, timeout_seconds=5))
        assert raw.status(raw.call(CHECK, b"")) == 0


RULES: dict[str, dict[str, Callable[[Service, str], None]]] = {
    "owner of each connection": dict.fromkeys(SERVERS, connections_are_owned),
    "deadline of the first request": dict.fromkeys(SERVERS, first_request_has_a_deadline),
    "deadline of a message": dict.fromkeys(SERVERS, message_has_a_deadline),
    "deadline of a response": dict.fromkeys(SERVERS, unread_responses_have_a_deadline),
    "counting before translating": dict.fromkeys(SERVERS, members_are_counted_before_they_are_translated),
    "bytes that arrive": dict.fromkeys(SERVERS, bytes_are_counted_as_they_arrive),
    "connections and files": dict.fromkeys(SERVERS, connections_are_bounded),
    "header blocks": dict.fromkeys(SERVERS, header_blocks_are_bounded),
    "fairness between peers": dict.fromkeys(SERVERS, silent_clients_are_evicted),
    "eviction of uploads": dict.fromkeys(SERVERS, fast_uploads_evict_slow_ones),
    "probes": dict.fromkeys(SERVERS, probes_need_no_slot),
}
"""The table: what holds each rule for each server. The stop ends the service, and has a test of its own."""


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("rule", RULES)
def test_rule_holds(service: Service, rule: str, server: str):
    RULES[rule][server](service, server)


def test_servers_keep_the_same_rules():
    assert {rule: tuple(servers) for rule, servers in RULES.items()} == dict.fromkeys(RULES, SERVERS)


@pytest.mark.parametrize("server", SERVERS)
def test_stop_has_a_deadline(tmp_path, server: str):
    """A client that has begun a message, and one that has none."""
    port = free_port()
    with ExitStack() as stack:
        with running_gateway(tmp_path / "log", program=PROGRAM, grpc_port=port, shutdown_grace_seconds=2) as gateway:
            service = Service(gateway, port)
            service.upload(server, stack, 10)
            stack.enter_context(service.connect(server))
            began = time.monotonic()
        assert time.monotonic() - began < 15


def test_idle_and_served_calls_share_a_connection(service: Service):
    with client(service.grpc_port) as raw:
        waiting = raw.call(INFER)
        assert _served(raw) == 0
        raw.send(waiting, prefixed(request(PNG).SerializeToString()), ends=True)
        assert raw.status(waiting) == 0


def _served(raw: RawClient) -> int:
    return raw.status(raw.call(INFER, request(PNG).SerializeToString()))
