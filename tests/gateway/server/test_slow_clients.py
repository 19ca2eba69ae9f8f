"""Clients that are slow or greedy cost only themselves: each limit at its value, and one past it.

Clients that are silent or many are in test_bounded_clients.py.
"""

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.attack.target import receive
from tests.doubles.backend import PNG
from tests.doubles.program import PROGRAM
from tests.processes import Gateway, running_gateway, wait_for

pytestmark = pytest.mark.slow
ALONE = pytest.mark.alone
"""These tests compare speeds, which other processes would change."""

KIB, MIB = 2**10, 2**20
PART = b'--b\r\nContent-Disposition: form-data; name="f"; filename="x.jpg"\r\n\r\n'
END = b"\r\n--b--\r\n"
SETTINGS = {
    "max_file_bytes": MIB,
    "max_bytes_waiting": 4 * MIB,
    "min_upload_bytes_per_second": 1_000,
    "upload_grace_seconds": 4,
    "answer_timeout_seconds": 4,
    "max_connections": 12,
    "log_level": "warning",
}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    log = tmp_path_factory.mktemp("slow") / "log"
    with running_gateway(log, program=PROGRAM, **SETTINGS) as running:
        yield running


def deaf(gateway: Gateway, receive_bytes: int) -> socket.socket:
    """A connection whose client has a small buffer for what it receives."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    client.settimeout(30)
    client.connect(("127.0.0.1", gateway.port))
    return client


def post(length: int, *fields: bytes, query: bytes = b"") -> bytes:
    """The head of an upload."""
    form = b"Content-Type: multipart/form-data; boundary=b"
    lines = (b"POST /predict%b HTTP/1.1" % query, b"Host: x", *fields, form, b"Content-Length: %d" % length)
    return b"\r\n".join(lines) + b"\r\n\r\n"


IMAGES = b"".join(PART + PNG + b"\r\n" for _ in range(90)) + END[2:]
ALL_CLASSES = b"?top_k=1000"
"""The parameter with which these images have a large response."""


def begin(gateway: Gateway, length: int = 50 * MIB) -> socket.socket:
    """A connection on which the body of an upload has begun."""
    client = gateway.connect(30)
    client.sendall(post(length) + PART)
    return client


def answer_of(client: socket.socket) -> tuple[int, dict[str, Any]]:
    """Status and body of a response, which must be complete."""
    received = receive(client, 60)
    return int(received[9:12]), json.loads(received.partition(b"\r\n\r\n")[2])


def test_upload_below_the_minimum_speed_ends_after_its_grace(gateway: Gateway):
    with begin(gateway) as slow:
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
    assert (status, problem["code"]) == (408, "upload_too_slow")
    assert (problem["limit"], problem["value"]) == ("min_upload_bytes_per_second", 1_000)


@ALONE
def test_upload_above_the_minimum_speed_may_pause(gateway: Gateway):
    pieces, piece = 10, bytes(4_000)
    with begin(gateway, len(PART) + pieces * len(piece) + len(END)) as steady:
        for _ in range(pieces):
            steady.sendall(piece)
            time.sleep(0.1)  # the client's pauses are what is tested
        steady.sendall(END)
        assert answer_of(steady)[0] == 415


@ALONE
def test_stalled_readers_are_evicted_for_active_ones(tmp_path):
    """From a gateway with long timeouts and small buffers."""
    times = ("upload_grace_seconds", "upload_idle_timeout_seconds", "answer_timeout_seconds")
    settings = {**SETTINGS, **dict.fromkeys(times, 300), "max_bytes_unread": 2 * MIB}
    whole = post(len(IMAGES), query=ALL_CLASSES) + IMAGES
    unread = 'gateway_connections_closed_total{reason="unread"}'
    with running_gateway(tmp_path / "log", program=PROGRAM, **settings) as patient:

        def is_answered() -> bool:
            with patient.connect(30) as client:
                client.sendall(whole)
                status, answer = answer_of(client)
            assert status == 200 or answer["limit"] == "max_bytes_unread"
            return status == 200

        with deaf(patient, 4 * KIB) as stalled:
            stalled.sendall(whole)
            # While it holds more than there is room for, no other answer is begun, and none can take room from it.
            wait_for(lambda: patient.metric("gateway_answer_bytes") > 2 * MIB)
            wait_for(is_answered)
            with contextlib.suppress(ConnectionResetError):
                while stalled.recv(65536):
                    pass  # it ends
        assert patient.metric(unread) == 1
        wait_for(lambda: patient.metric("gateway_answer_bytes") == 0)


@ALONE
def test_slow_but_steady_reader_gets_its_whole_response(gateway: Gateway):
    with deaf(gateway, 64 * KIB) as slow:
        slow.sendall(post(len(IMAGES), b"Connection: close", query=ALL_CLASSES) + IMAGES)
        received = bytearray()
        while piece := slow.recv(256 * KIB):
            received += piece
            time.sleep(0.02)  # the client's slowness
    head, _, content = bytes(received).partition(b"\r\n\r\n")
    assert b" 200 " in head.partition(b"\r\n")[0]
    assert content.rstrip(b"\r\n0").endswith(b'"failed":0}}')
