"""Request smuggling: the gateway reads no request behind one that a proxy might read differently."""

import contextlib
import socket

import pytest

from tests.processes import Gateway

pytestmark = pytest.mark.slow

SETTINGS = {"log_level": "debug"}
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: x\r\nX-Request-ID: smuggled\r\n\r\n"


def head(line: bytes, *fields: bytes) -> bytes:
    return b"\r\n".join([line, b"Host: x", *fields, b"", b""])


def chunked(*fields: bytes, body: bytes = b"0\r\n\r\n") -> bytes:
    return head(b"POST /predict HTTP/1.1", b"Content-Type: image/png", *fields) + body + SMUGGLED


LENGTH = b"Content-Length: " + str(5 + len(SMUGGLED)).encode()
BODY = b"0\r\n\r\n" + SMUGGLED
TE = b"Transfer-Encoding: chunked"
AMBIGUOUS = {
    "length and chunks": chunked(LENGTH, TE),
    "chunks and length": chunked(TE, b"Content-Length: 4"),
    **{
        f"coding {coding!r}": chunked(LENGTH, b"Transfer-Encoding:" + coding)
        for coding in (
            b"\tchunked",
            b" xchunked",
            b" chunked, identity",
            b" identity, chunked",
            b" chunked\x0b",
            b" \x00chunked",
            b" chunked,",
            b" 'chunked'",
            b" chunked;q=1",
            b" CHUNKED",
            b"\x0cchunked",
        )
    },
    "two codings": chunked(LENGTH, TE, b"Transfer-Encoding: identity"),
    "a space before the colon": chunked(LENGTH, b"Transfer-Encoding : chunked"),
    "a folded coding": chunked(LENGTH, b"Transfer-Encoding:\r\n chunked"),
    "a coding in an underscore": chunked(LENGTH, b"Transfer_Encoding: chunked"),
    "a coding after a bare line feed": chunked(LENGTH, b"A: b\nTransfer-Encoding: chunked"),
    "a coding after a bare carriage return": chunked(LENGTH, b"A: b\rTransfer-Encoding: chunked"),
    **{
        f"length {length!r}": head(b"POST /predict HTTP/1.1", b"Content-Length:" + length) + SMUGGLED
        for length in (b" +0", b" -0", b" 0x0", b" 0,0", b" 0 1", b"", b" 0_0", b"\xa00", b" 0.0", b" 0\x00")
    },
    "two lengths": head(b"POST /predict HTTP/1.1", b"Content-Length: 0", LENGTH) + BODY,
    "two lengths, longest first": head(b"POST /predict HTTP/1.1", LENGTH, b"Content-Length: 0") + BODY,
    **{
        f"chunk of {size!r}": chunked(TE, body=size + b"\r\n" + SMUGGLED + b"\r\n0\r\n\r\n")
        for size in (b"0x0", b"+0", b"0 ", b"-0", b"0_0", b"1" + b"0" * 16, b"g", b"", b"0;\n", b"0;a=\rb", b"\x000")
    },
    "chunks that end with line feeds": chunked(TE, body=b"0\n\n"),
    "a chunk without its end": chunked(TE, body=b"1\r\nab\r\n0\r\n\r\n"),
    "a trailer that looks like a request": chunked(TE, body=b"0\r\nGET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"),
    "a GET with a body": head(b"GET /health/live HTTP/1.1", LENGTH) + BODY,
    "a GET whose body is one": head(b"GET /health/live HTTP/1.1", b"Content-Length: %d" % len(SMUGGLED)) + SMUGGLED,
    "a HEAD whose body is one": head(b"HEAD /health/live HTTP/1.1", b"Content-Length: %d" % len(SMUGGLED)) + SMUGGLED,
    "a POST where none is taken": head(b"POST /health/live HTTP/1.1", b"Content-Length: %d" % len(SMUGGLED)) + SMUGGLED,
    "a POST that is refused": head(b"POST /nothing HTTP/1.1", b"Content-Length: %d" % len(SMUGGLED)) + SMUGGLED,
    "a body that is too large": head(b"POST /predict HTTP/1.1", b"Content-Length: 99999999999") + SMUGGLED,
    "an expectation": head(b"POST /nothing HTTP/1.1", b"Expect: 100-continue", b"Content-Length: 1") + SMUGGLED,
    "HTTP/1.0 in chunks": head(b"POST /predict HTTP/1.0", b"Connection: keep-alive", TE) + BODY,
    "a version that nobody knows": head(b"POST /predict HTTP/1.9", LENGTH, TE) + BODY,
    "a WebSocket of a wrong version": head(
        b"GET /stream HTTP/1.1",
        b"Connection: Upgrade",
        b"Upgrade: websocket",
        b"Sec-WebSocket-Version: 777",
        b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
    )
    + SMUGGLED,
    "a line that has two": b"GET /a HTTP/1.1\r\nHost: x\r\nA: \r\r\n" + SMUGGLED,
    "an absolute address": head(b"GET http://x/smuggled HTTP/1.1")
    .replace(b"smuggled", b"models")
    .replace(b"\r\n\r\n", b"\r\nContent-Length: 0\r\n\r\n"),
}
"""Each ends with a request that a proxy may take for a body."""


def send(port: int, data: bytes) -> bytes:
    """The response, until the other side closes the connection or is silent for a while."""
    received = b""
    with socket.create_connection(("127.0.0.1", port), timeout=2) as connection, contextlib.suppress(OSError):
        connection.sendall(data)
        connection.settimeout(0.3)
        while piece := connection.recv(65_536):
            received += piece
    return received


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_gateway_reads_nothing_after_what_is_ambiguous(gateway: Gateway, name: str):
    """An ambiguous request is the last one of its connection, so that no proxy can take the next one for its body."""
    since = gateway.log.stat().st_size
    send(gateway.port, AMBIGUOUS[name])
    assert [event for event in gateway.events(since) if "smuggled" in str(event.get("path", ""))] == []
    assert not gateway.faults(since)
