"""Request smuggling: what a proxy and the gateway might read differently brings no other request past the proxy."""

import contextlib
import shutil
import socket
import subprocess
from collections.abc import Iterator

import httpx
import pytest

from tests.processes import Gateway, free_port, listens, wait_for

pytestmark = pytest.mark.slow

SETTINGS = {"log_level": "debug"}
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: x\r\nX-Request-ID: smuggled\r\n\r\n"
NGINX = """
daemon off; pid {folder}/pid; error_log {folder}/log warn; worker_processes 1;
events {{ worker_connections 64; }}
http {{
  access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  upstream gateway {{ server 127.0.0.1:{port}; keepalive 1; }}
  map $http_upgrade $upgraded {{ default upgrade; '' ''; }}
  server {{
    listen 127.0.0.1:{listen}; ignore_invalid_headers off; underscores_in_headers on;
    location / {{
      proxy_pass http://gateway; proxy_http_version 1.1; proxy_request_buffering off; proxy_next_upstream off;
      proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection $upgraded;
    }}
  }}
}}
"""
HAPROXY = """
global
  maxconn 64
defaults
  mode http
  timeout connect 10s
  timeout client 10s
  timeout server 10s
  option accept-invalid-http-request
  http-reuse always
listen gateway
  bind 127.0.0.1:{listen}
  server gateway 127.0.0.1:{port} maxconn 1
"""


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
        for length in (b" +0", b" -0", b" 0x0", b" 0,0", b" 0 1", b"", b" 0_0", b" 00", b"\xa00", b" 0.0", b" 0\x00")
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
    "HTTP/2 in clear text": head(
        b"GET / HTTP/1.1",
        b"Connection: Upgrade, HTTP2-Settings",
        b"Upgrade: h2c",
        b"HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA",
    )
    + SMUGGLED,
    "a WebSocket of a wrong version": head(
        b"GET /stream HTTP/1.1",
        b"Connection: Upgrade",
        b"Upgrade: websocket",
        b"Sec-WebSocket-Version: 777",
        b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
    )
    + SMUGGLED,
    "a WebSocket at another path": head(
        b"GET /models HTTP/1.1",
        b"Connection: Upgrade",
        b"Upgrade: websocket",
        b"Sec-WebSocket-Version: 13",
        b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
    )
    + SMUGGLED,
    "a line that has two": b"GET /a HTTP/1.1\r\nHost: x\r\nA: \r\r\n" + SMUGGLED,
    "an absolute address": head(b"GET http://x/smuggled HTTP/1.1")
    .replace(b"smuggled", b"models")
    .replace(b"\r\n\r\n", b"\r\nContent-Length: 0\r\n\r\n"),
}
"""Each ends with a request that a proxy takes for a body, or another request of the same client."""

CLEAR = {"length b' 00'", "HTTP/2 in clear text", "a WebSocket at another path"}
"""These have no body for the gateway, and may be followed by another request."""


@pytest.fixture(scope="module", params=["nginx", "haproxy"])
def proxy(request, gateway: Gateway, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a proxy that keeps one connection to the gateway, for all of its clients."""
    program = shutil.which(request.param) or shutil.which(request.param, path="/usr/sbin")
    if program is None:
        pytest.skip(f"{request.param} is not installed")
    folder, port = tmp_path_factory.mktemp(request.param), free_port()
    template = {"nginx": NGINX, "haproxy": HAPROXY}[request.param]
    file = folder / "configuration"
    file.write_text(template.format(folder=folder, listen=port, port=gateway.port))
    command = [program, "-c", str(file)] if request.param == "nginx" else [program, "-db", "-f", str(file)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: listens(port), process=process)
        yield port
    finally:
        process.terminate()
        process.wait(30)


def send(port: int, data: bytes) -> bytes:
    """What comes back until the other side closes the connection or has said nothing for a while."""
    received = b""
    with socket.create_connection(("127.0.0.1", port), timeout=2) as connection, contextlib.suppress(OSError):
        connection.sendall(data)
        connection.settimeout(0.3)
        while piece := connection.recv(65_536):
            received += piece
    return received


def smuggled(gateway: Gateway, since: int) -> list[str]:
    """The paths of requests that the gateway has taken for the smuggled one."""
    return [str(event) for event in gateway.events(since) if "smuggled" in str(event.get("path", ""))]


def own_answers(port: int) -> None:
    """Other clients' requests over the proxy's connection have their own answers."""
    for name, path, status in (("one", "/health/live", 200), ("two", "/models", 200), ("three", "/nothing", 404)):
        answer = httpx.get(f"http://127.0.0.1:{port}{path}", headers={"X-Request-ID": name}, timeout=60)
        assert (answer.headers["x-request-id"], answer.status_code) == (name, status)


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_proxied_request_is_one(gateway: Gateway, proxy: int, name: str):
    """What a proxy forwards as one request, the gateway reads as one; a client may itself send two."""
    own_answers(proxy)
    since = gateway.log.stat().st_size
    answers = send(proxy, AMBIGUOUS[name]).count(b"HTTP/1.1 ")
    own_answers(proxy)
    assert len(smuggled(gateway, since)) <= max(answers - 1, 0)
    assert not gateway.faults(since)


@pytest.mark.parametrize("name", sorted(AMBIGUOUS.keys() - CLEAR))
def test_gateway_reads_nothing_after_what_is_ambiguous(gateway: Gateway, name: str):
    """Without a proxy: an ambiguous request is the last one of its connection."""
    since = gateway.log.stat().st_size
    send(gateway.port, AMBIGUOUS[name])
    assert len(smuggled(gateway, since)) == 0
    assert not gateway.faults(since)
