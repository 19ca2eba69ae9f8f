"""Limits of the HTTP server: a request at the limit succeeds; past it, the error names the limit and its value."""

import time

import httpx
import pytest

from gateway.settings import MIB
from tests.processes import Gateway

SMALL = {"max_header_bytes": 2_048, "upload_idle_timeout_seconds": 50, "upload_timeout_seconds": 60}
HASTY = {"upload_idle_timeout_seconds": 1.5, "upload_timeout_seconds": 2}
"""For a single test: the other tests must not fail if the machine pauses this long."""


@pytest.fixture(scope="module")
def strict(start_gateway, light_triton):
    """A gateway with small limits."""
    with start_gateway(triton_url=light_triton.url, **SMALL) as running:
        yield running


@pytest.fixture(scope="module")
def hasty(start_gateway):
    """A gateway with short timeouts, which needs no Triton."""
    with start_gateway(triton_url="127.0.0.1:9", wait_ready=False, **HASTY) as running:
        yield running


@pytest.fixture
def http(strict: Gateway):
    with strict.client() as client:
        yield client


def is_problem(answer: httpx.Response, status: int, code: str, limit: str) -> bool:
    body = answer.json()
    assert answer.headers["content-type"] == "application/problem+json"
    assert (answer.status_code, body["code"], body["limit"], body["value"]) == (status, code, limit, SMALL[limit])
    return True


def test_max_header_bytes(strict: Gateway):
    def status(nbytes: int) -> bytes:
        lines = b"Host: x\r\nConnection: close\r\n"
        lines += b"X-Filler: " + b"x" * (nbytes - len(lines) - len(b"X-Filler: \r\n")) + b"\r\n"
        with strict.connect() as client:
            client.sendall(b"GET /health/live HTTP/1.1\r\n" + lines + b"\r\n")
            answer = b"".join(iter(lambda: client.recv(65_536), b""))
        if not answer.startswith(b"HTTP/1.1 200"):
            assert b'"limit":"max_header_bytes","value":2048' in answer
        return answer[9:12]

    assert status(2_048) == b"200"
    assert status(2_049) == b"431"


def test_url_counts_towards_max_header_bytes(http: httpx.Client):
    path = "/predict?x="
    assert http.post(path + "x" * (2_048 - len(path))).status_code == 422
    assert is_problem(http.post(path + "x" * (2_049 - len(path))), 431, "headers_too_large", "max_header_bytes")


@pytest.mark.parametrize("filler", [b"x" * 1_000 + b"\r\nA: ", b"x" * 50_000])
def test_endless_headers_are_cut_off(strict: Gateway, filler: bytes):
    before = strict.resident_bytes()
    with strict.connect() as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nA: ")
        with pytest.raises(OSError):  # noqa: PT012  # refused under the endless header
            for _ in range(100 * MIB // len(filler)):
                client.sendall(filler)
    assert strict.resident_bytes() - before < 20 * MIB


@pytest.mark.parametrize(
    ("pause_seconds", "limit"), [(50, "upload_idle_timeout_seconds"), (0.1, "upload_timeout_seconds")]
)
def test_stalled_or_dripping_upload_is_cut_off(hasty: Gateway, pause_seconds: float, limit: str):
    started = time.monotonic()
    with hasty.connect() as client:
        client.sendall(
            b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 90000\r\n"
            b"Content-Type: multipart/form-data; boundary=b\r\n\r\n--b\r\n"
        )
        client.settimeout(pause_seconds)
        answer = b""
        while b"upload_timeout" not in answer and time.monotonic() - started < 50:
            try:
                answer += client.recv(4096)
            except TimeoutError:
                client.sendall(b"x")
    assert answer.startswith(b"HTTP/1.1 408")
    assert f'"limit":"{limit}"'.encode() in answer
