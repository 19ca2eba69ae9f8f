"""Unusual and invalid requests get a clear response, log no error, and do not affect later requests."""

import re
import socket
import struct

import pytest

from bench.http_load import form
from gateway.server.http import MAX_HANDSHAKE_HEADERS, MAX_HEADER_BYTES, MAX_HEADERS, MAX_LINE_BYTES
from tests.attack.target import MULTIPART, chunked, receive, summary
from tests.attack.websocket import GOOD, handshake
from tests.doubles.backend import PNG
from tests.processes import Gateway, wait_for

pytestmark = pytest.mark.slow

WEBSOCKET = ("Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13")
CLOSING = ("Upgrade: h2c", "Connection: Upgrade, HTTP2-Settings, close")
LENGTH = f"Content-Length: {len(PNG)}"
IMAGE = "Content-Type: image/png"


def request(line: str, *headers: str, body: bytes = b"") -> bytes:
    return "\r\n".join([line, "Host: x", *headers, "\r\n"]).encode() + body


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (request("GET /health/live HTTP/1.1", *WEBSOCKET), "200"),
        (request("GET /health/live HTTP/1.1", *CLOSING), "200"),
        (request("POST /predict HTTP/1.1", *CLOSING, IMAGE, LENGTH, body=PNG), "200 ok"),
        (
            request(
                "POST /predict HTTP/1.1",
                *CLOSING,
                IMAGE,
                "Transfer-Encoding: chunked",
                body=b"".join(chunked([PNG])),
            ),
            "200 ok",
        ),
        (request("POST http://elsewhere/predict HTTP/1.1", IMAGE, LENGTH, body=PNG), "200 ok"),
        (request("POST /predict HTTP/1.1", "Expect: nonsense", IMAGE, LENGTH, body=PNG), "200 ok"),
        (request("GET /models/%ED%A0%80%00 HTTP/1.1"), "404 model_not_found"),
        (request(f"GET /assets/{'../' * 5_000} HTTP/1.1"), "404 not_found"),
        (b"GET /nowhere HTTP/1.1\r\nHost: [\r\n\r\n", "404 not_found"),
        (request("GET /nowhere HTTP/1.1", "Upgrade: websocket", "Connection: Upgrade"), "404 not_found"),
        (request("CONNECT x:1 HTTP/1.1", *CLOSING), "400 invalid_request"),
        (request("GET / HTTP/1.1", "Host: y"), "400 invalid_request"),
        (request("PRI * HTTP/2.0"), "400 invalid_request"),
        (request("GET / HTTP/9.9"), "400 invalid_request"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200), "400 invalid_request"),  # TLS
        (request("POST /predict HTTP/1.1", "Transfer-Encoding: chunked", body=b"ZZ\r\n"), "400 invalid_request"),
        (request("GET / HTTP/1.1", "A: b\r\n c"), "400 invalid_request"),
        *(
            (request("GET / HTTP/1.1", f"X-Request-ID: a{ending}Set-Cookie: x=1"), "400 invalid_request")
            for ending in ("\n", "\r", "\r\n ", "\0")
        ),
        *(
            (request("POST /predict HTTP/1.1", IMAGE, framing, body=b"abcd"), "400 invalid_request")
            for framing in (
                f"Content-Length: {'0' * 5_000}4",
                f"Content-Length: {'9' * 5_000}",
                "Content-Length: 4\r\nContent-Length: 4",
                "Content-Length: 4, 4",
                "Content-Length: +4",
                "Content-Length: -1",
                "Content-Length: 4\r\nTransfer-Encoding: chunked",
                "Transfer-Encoding: identity",
                "Transfer-Encoding: chunked, chunked",
            )
        ),
        (request("POST /predict HTTP/1.1", IMAGE, f"Content-Length: {2**64 - 1}", body=b"abcd"), "413 file_too_large"),
    ],
    ids=lambda value: value[:60].decode("latin-1").replace("\r\n", " ") if isinstance(value, bytes) else value,
)
def test_unusual_http_gets_a_clear_response(gateway: Gateway, sent: bytes, answer: str):
    offset = gateway.log.stat().st_size
    with gateway.connect(10) as connection:
        connection.sendall(sent)
        received = receive(connection, 10)
    assert summary(received) == answer
    head = received.partition(b"\r\n\r\n")[0].lower()
    assert not re.search(rb"^(server|set-cookie):", head, re.MULTILINE)
    assert b"uvicorn" not in received.lower()
    assert not gateway.faults(offset)


CHUNKED = request("POST /predict HTTP/1.1", IMAGE, "Transfer-Encoding: chunked", "Connection: close")


@pytest.mark.parametrize(
    ("send", "most", "more", "within", "beyond"),
    [
        (
            lambda count: request("GET /health/live HTTP/1.1", *["a: b"] * (count - 1)),
            MAX_HEADERS,
            1,
            "200",
            "431 headers_too_large",
        ),
        (
            lambda nbytes: CHUNKED + b"4;" + b"x" * nbytes + b"\r\n" + PNG[:4] + b"\r\n0\r\n\r\n",
            MAX_HEADER_BYTES - 100,
            5_000,  # they are counted in pieces of up to 4 KiB
            "415 unsupported_format",
            "431 headers_too_large",
        ),
        (
            lambda nbytes: handshake([*GOOD, (b"a", b"x" * nbytes)]),
            MAX_LINE_BYTES - 2,
            1,
            "101",
            "426 upgrade_required",
        ),
        (
            lambda count: handshake([*GOOD, *[(b"a%d" % number, b"b") for number in range(count - len(GOOD))]]),
            MAX_HANDSHAKE_HEADERS - 1,
            1,
            "101",
            "426 upgrade_required",
        ),
    ],
    ids=["headers", "bytes of chunk extensions", "bytes of a handshake's line", "headers of a handshake"],
)
def test_bound_of_a_parser_holds(gateway: Gateway, send, most: int, more: int, within: str, beyond: str):
    for size, answer in ((most, within), (most + more, beyond)):
        with gateway.connect(10) as connection:
            connection.sendall(send(size))
            assert summary(receive(connection, 10)) == answer


def test_queued_requests_end_with_their_connection(gateway: Gateway):
    offset = gateway.log.stat().st_size
    body = b"".join(form([PNG] * 40))
    slow = request(
        "POST /predict?top_k=1000 HTTP/1.1",
        f"Content-Type: {MULTIPART}",
        f"Content-Length: {len(body)}",
        body=body,
    )
    for _ in range(10):
        with gateway.connect() as connection:
            connection.sendall(slow + request("GET /nowhere HTTP/1.1") * 12)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close by a reset
    wait_for(lambda: gateway.metric("gateway_connections") == 1)  # of the client that asks
    wait_for(lambda: gateway.metric("gateway_images_in_flight") == 0)
    assert not gateway.faults(offset)
