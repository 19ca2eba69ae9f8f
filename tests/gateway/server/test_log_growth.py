"""A client cannot make the log grow faster than its own traffic."""

import contextlib
import json
import re
import socket
import struct
from collections.abc import Iterator

import pytest

from tests.doubles.program import PROGRAM
from tests.processes import Gateway, running_gateway, wait_for

TIMES = 50
UPGRADE = (
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running_gateway(tmp_path_factory.mktemp("log") / "log", program=PROGRAM) as running:
        yield running


def exchange(gateway: Gateway, sent: bytes, *, resets: bool) -> int:
    """The bytes that a request and its response take; a client that resets does not read its response."""
    with socket.create_connection(("127.0.0.1", int(gateway.url.rpartition(":")[2])), timeout=30) as client:
        client.sendall(sent)
        received = b""
        if resets:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        else:
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_WR)
                while data := client.recv(65_536):
                    received += data
    return len(sent) + len(received)


@pytest.mark.parametrize(
    ("sent", "resets"),
    [
        ("GET /x HTTP/1.1\r\n\r\n", False),
        ("HEAD /x HTTP/1.1\r\n\r\n", False),
        ("HEAD /" + 300 * "%07" + " HTTP/1.1\r\n\r\n", False),
        ("HEAD /" + 100 * "%C3%A9" + " HTTP/1.1\r\n\r\n", False),
        ("?\r\n\r\n", False),
        (f"GET /stream?smoothing=none HTTP/1.1\r\n{UPGRADE}\r\n", True),
        (f"GET /stream HTTP/1.1\r\n{UPGRADE.replace('==', '')}\r\n" + 100 * "x", False),
        (f"GET /stream?smoothing=none HTTP/1.1\r\n{UPGRADE}\r\n\0\0", False),
    ],
    ids=["not found", "HEAD", "control characters", "accents", "no HTTP", "reset", "bad handshake", "bad frame"],
)
def test_log_grows_no_faster_than_the_traffic(gateway: Gateway, sent: str, resets: bool):
    before = gateway.log.stat().st_size
    traffic = sum(exchange(gateway, sent.encode(), resets=resets) for _ in range(TIMES))

    def events() -> list[dict]:
        return [json.loads(line) for line in gateway.log.read_bytes()[before:].splitlines()]

    if resets:  # a response was sent as well; a request whose client has left before it begins has no event
        traffic += TIMES * 300
        while not any(event.get("path") == "/end" for event in events()):
            traffic += exchange(gateway, b"GET /end HTTP/1.1\r\n\r\n", resets=False)
    if re.match(r"GET|HEAD", sent) and "x" * 100 not in sent and not resets:
        wait_for(lambda: len(events()) >= TIMES)
    assert gateway.log.stat().st_size - before <= traffic
    assert not [event for event in events() if event["event"] == "unexpected_error" or "exception" in event]
