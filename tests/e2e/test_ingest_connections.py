"""Connections that send too much or too little, their limits, and responses before the end of the body."""

import json
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest

from gateway.server.http import MAX_HEADER_BYTES
from gateway.settings import MIB
from tests.photos import photo
from tests.processes import Gateway

LIMITS = {
    "max_request_bytes": 3 * MIB,
    "max_file_bytes": 2 * MIB,
    "upload_idle_timeout_seconds": 2,
    "upload_timeout_seconds": 6,
}


@pytest.fixture(scope="module")
def impatient(start_gateway):
    """A gateway with short timeouts and without a Triton."""
    with start_gateway(triton_url="127.0.0.1:9", wait_ready=False, **LIMITS) as running:
        yield running


def read_until(connection: socket.socket, end: bytes) -> bytes:
    received = b""
    while not received.endswith(end):
        chunk = connection.recv(65_536)
        assert chunk, received
        received += chunk
    return received


@pytest.mark.parametrize(
    ("content_type", "limit"),
    [("multipart/form-data; boundary=b", "max_request_bytes"), ("image/png", "max_file_bytes")],
)
def test_too_large_content_length_gets_no_100_continue(impatient: Gateway, content_type: str, limit: str):
    def answer(announced: int, end: bytes) -> bytes:
        with impatient.connect() as connection:
            connection.sendall(
                b"POST /predict HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
                b"Content-Type: %b\r\nContent-Length: %d\r\n\r\n" % (content_type.encode(), announced)
            )
            return read_until(connection, end)

    assert answer(LIMITS[limit], b"\r\n\r\n").startswith(b"HTTP/1.1 100 ")
    refused = answer(LIMITS[limit] + 1, b"}")
    assert refused.startswith(b"HTTP/1.1 413 ")
    assert f'"limit":"{limit}","value":{LIMITS[limit]}'.encode() in refused


def curl(*arguments: str | Path) -> dict:
    """The JSON that curl prints."""
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    run = subprocess.run(["curl", "-sS", *arguments], capture_output=True, text=True, timeout=30, check=True)
    return json.loads(run.stdout)


@pytest.mark.parametrize("options", [[], ["-H", "Expect:"], ["-H", "Transfer-Encoding: chunked"], ["--http2"]], ids=str)
def test_curl_sees_why_its_upload_was_refused(impatient: Gateway, tmp_path: Path, options: list[str]):
    upload = tmp_path / "large.jpg"
    with upload.open("wb") as file:
        file.truncate(20 * MIB)
    answer = curl("-o", "-", *options, "-F", f"files=@{upload}", f"{impatient.url}/predict")
    assert answer["limit"] == "max_request_bytes"


@pytest.mark.parametrize("option", ["--http1.0", "--http1.1", "--http2"])
def test_curl_is_served_whatever_protocol_it_offers(gateway: Gateway, tmp_path: Path, option: str):
    upload = tmp_path / "cat.jpg"
    upload.write_bytes(photo("cat"))
    answer = curl(option, "-F", f"files=@{upload}", f"{gateway.url}/predict?top_k=1")
    assert answer["results"][0]["predictions"][0]["label"] == "Egyptian cat"


@pytest.mark.parametrize("part", ["a header", "the URL"])
def test_max_header_bytes(impatient: Gateway, part: str):
    """Of the URL and the headers together, which are counted in pieces of up to 4 KiB."""

    def answer(nbytes: int) -> bytes:
        lines = b"Host: x\r\nConnection: close\r\n"
        if part == "a header":
            lines += b"X-Filler: " + b"x" * (nbytes - len(lines) - len(b"X-Filler: \r\n")) + b"\r\n"
        path = b"/health/live" + (b"" if part == "a header" else b"?" + b"x" * (nbytes - len(b"/health/live?")))
        with impatient.connect() as client:
            client.sendall(b"GET %b HTTP/1.1\r\n%b\r\n" % (path, lines))
            return b"".join(iter(lambda: client.recv(65_536), b""))

    assert answer(MAX_HEADER_BYTES - 100).startswith(b"HTTP/1.1 200 ")
    refused = answer(MAX_HEADER_BYTES + 5_000)
    assert refused.startswith(b"HTTP/1.1 431 ")
    assert b"content-type: application/problem+json" in refused.lower()
    assert b'"limit":"max_header_bytes","value":%d' % MAX_HEADER_BYTES in refused


def test_dripping_upload_is_cut_off(impatient: Gateway):
    started = time.monotonic()
    with impatient.connect() as client:
        client.sendall(
            b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 900000\r\nContent-Type: image/png\r\n\r\n"
        )
        client.settimeout(0.1)
        answer = b""
        while b"upload_timeout" not in answer and time.monotonic() - started < 50:
            try:
                answer += client.recv(4096)
            except TimeoutError:
                client.sendall(b"x" * 1_500)
    assert answer.startswith(b"HTTP/1.1 408")
    assert b'"limit":"upload_timeout_seconds"' in answer
