"""Unusual HTTP requests get a clear response at once, log no error, and do not affect later requests."""

import json
import re
import socket
import struct
from collections.abc import Iterator

import httpx
import pytest

from bench.attack.parsers import SMALL_BMP
from bench.attack.target import Target, chunked, form, receive, told
from tests.processes import Gateway, running_gateway, wait_for
from tests.stub_server import COMMAND

pytestmark = pytest.mark.slow

WEBSOCKET = ("Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13")
CLOSING = ("Upgrade: h2c", "Connection: Upgrade, HTTP2-Settings, close")
LENGTH = f"Content-Length: {len(SMALL_BMP)}"
IMAGE = "Content-Type: image/bmp"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running_gateway(tmp_path_factory.mktemp("http") / "log", command=COMMAND) as running:
        yield running


def target(gateway: Gateway) -> Target:
    return Target("127.0.0.1", int(gateway.url.rpartition(":")[2]))


def request(line: str, *headers: str, body: bytes = b"") -> bytes:
    return "\r\n".join([line, "Host: x", *headers, "\r\n"]).encode() + body


def faults(gateway: Gateway, offset: int) -> list[dict]:
    lines = gateway.log.read_bytes()[offset:].splitlines()
    events = [json.loads(line) for line in lines if line.startswith(b"{")]
    return [event for event in events if event["level"] in ("error", "critical")]


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (request("GET /health/live HTTP/1.1", *WEBSOCKET), "200"),
        (request("GET /health/live HTTP/1.1", *CLOSING), "200"),
        (request("POST /predict HTTP/1.1", *CLOSING, IMAGE, LENGTH, body=SMALL_BMP), "200 ok"),
        (
            request(
                "POST /predict HTTP/1.1",
                *CLOSING,
                IMAGE,
                "Transfer-Encoding: chunked",
                body=b"".join(chunked([SMALL_BMP])),
            ),
            "200 ok",
        ),
        (request("POST http://elsewhere/predict HTTP/1.1", IMAGE, LENGTH, body=SMALL_BMP), "200 ok"),
        (request("POST /predict HTTP/1.1", "Expect: nonsense", IMAGE, LENGTH, body=SMALL_BMP), "200 ok"),
        (request("GET /models/%ED%A0%80%00 HTTP/1.1"), "404 model_not_found"),
        (request(f"GET /assets/{'../' * 5_000} HTTP/1.1"), "404 not_found"),
        (request("PRI * HTTP/2.0"), "400 invalid_request"),
        (request("GET / HTTP/1.1", "A: b\r\n c"), "400 invalid_request"),
        *(
            (request("POST /predict HTTP/1.1", IMAGE, framing, body=b"abcd"), "400 invalid_request")
            for framing in (
                f"Content-Length: {'0' * 5_000}4",
                f"Content-Length: {'9' * 5_000}",
                "Content-Length: 4\r\nContent-Length: 4",
                "Content-Length: 4, 4",
                "Content-Length: +4",
                "Content-Length: 4\r\nTransfer-Encoding: chunked",
                "Transfer-Encoding: identity",
                "Transfer-Encoding: chunked, chunked",
            )
        ),
        (request("POST /predict HTTP/1.1", IMAGE, f"Content-Length: {2**64 - 1}", body=b"abcd"), "413 file_too_large"),
    ],
    ids=lambda value: value[:60].decode().replace("\r\n", " ") if isinstance(value, bytes) else value,
)
def test_unusual_http_gets_a_clear_response(gateway: Gateway, sent: bytes, answer: str):
    offset = gateway.log.stat().st_size
    with target(gateway).connect() as connection:
        connection.settimeout(10)
        connection.sendall(sent)
        assert told(receive(connection, 10)) == answer
    assert not faults(gateway, offset)


def test_requests_that_wait_behind_another_end_with_their_connection(gateway: Gateway):
    offset = gateway.log.stat().st_size
    body = b"".join(form([SMALL_BMP] * 40))
    slow = request(
        "POST /predict?top_k=1000 HTTP/1.1",
        "Content-Type: multipart/form-data; boundary=a-boundary-that-no-photograph-contains",
        f"Content-Length: {len(body)}",
        body=body,
    )
    for _ in range(10):
        with target(gateway).connect() as connection:
            connection.sendall(slow + request("GET /nowhere HTTP/1.1") * 12)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close by a reset
    wait_for(lambda: gauge(gateway, "gateway_connections") == 1)  # of the client that asks
    wait_for(lambda: gauge(gateway, "gateway_images_in_flight") == 0)
    assert not faults(gateway, offset)


def gauge(gateway: Gateway, name: str) -> float:
    return float(re.search(rf"^{name} (\S+)$", httpx.get(f"{gateway.url}/metrics").text, re.MULTILINE)[1])
