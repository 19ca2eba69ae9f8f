"""Every limit over HTTP: a request at the limit succeeds; one past it, the error names the limit and its value."""

import io
import time

import httpx
import pytest
from PIL import Image

from gateway.settings import MIB
from gateway_plugins.tenants.limits_route import FIXED
from tests.processes import Gateway
from tests.settings import Settings

SMALL = {
    "max_files": 3,
    "max_file_bytes": 40_000,
    "max_request_bytes": 100_000,
    "max_image_pixels": 10_000,
    "max_image_side": 200,
    "max_header_bytes": 2_048,
    "max_part_header_bytes": 512,
    "upload_idle_timeout_seconds": 50,
    "upload_timeout_seconds": 60,
}
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


def image(width: int, height: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (width, height), "teal").save(file, "PNG")
    return file.getvalue()


SMALL_IMAGE = image(50, 50)


def padded(nbytes: int) -> bytes:
    """A JPEG of an exact size, filled up by comments."""
    file = io.BytesIO()
    Image.new("RGB", (50, 50), "teal").save(file, "JPEG")
    jpeg, filler = file.getvalue(), b""
    left = nbytes - len(jpeg)
    while left:
        length = min(left, 60_000) if left != 60_001 else 30_000
        filler += b"\xff\xfe" + (length - 2).to_bytes(2, "big") + bytes(length - 4)
        left -= length
    return jpeg[:2] + filler + jpeg[2:]


def error_of(answer: httpx.Response, index: int = 0) -> str | None:
    error = answer.json()["results"][index]["error"]
    return error["code"] if error else None


def is_problem(answer: httpx.Response, status: int, code: str, limit: str) -> bool:
    body = answer.json()
    assert answer.headers["content-type"] == "application/problem+json"
    assert (answer.status_code, body["code"], body["limit"], body["value"]) == (status, code, limit, SMALL[limit])
    return True


def test_limits_are_published_with_their_errors(http: httpx.Client):
    limits = {limit["name"]: limit for limit in http.get("/limits").json()["limits"]}
    settings, fixed = Settings.all_limits(), {**FIXED, **Settings.all_fixed_limits()}
    assert set(limits) == {*settings, *fixed}
    for name in settings:
        assert limits[name]["value"] == SMALL.get(name, Settings.model_fields[name].default)
        assert limits[name]["setting"] == f"GATEWAY_{name.upper()}"
    for name, (value, _, error) in fixed.items():
        assert (limits[name]["value"], limits[name]["code"], limits[name]["setting"]) == (value, error.code, None)


def test_max_files(http: httpx.Client):
    files = [("f", (f"{n}.png", SMALL_IMAGE)) for n in range(4)]
    assert http.post("/predict", files=files[:3]).json()["summary"] == {"ok": 3, "failed": 0}
    assert is_problem(http.post("/predict", files=files), 413, "too_many_files", "max_files")


def test_too_large_file_leaves_the_other_results(http: httpx.Client):
    files = [("f", ("at.jpg", padded(40_000))), ("f", ("past.jpg", padded(40_001))), ("f", ("next.png", SMALL_IMAGE))]
    answer = http.post("/predict", files=files)
    assert [error_of(answer, n) for n in range(3)] == [None, "file_too_large", None]


def test_max_file_bytes_of_a_raw_body(http: httpx.Client):
    headers = {"Content-Type": "image/jpeg"}
    assert http.post("/predict", content=padded(40_000), headers=headers).status_code == 200
    answer = http.post("/predict", content=padded(40_001), headers=headers)
    assert is_problem(answer, 413, "file_too_large", "max_file_bytes")


def multipart_of(total: int) -> bytes:
    """A multipart body of an exact length, of three files."""
    head = b'--b\r\nContent-Disposition: form-data; name="f"; filename="x.jpg"\r\n\r\n'
    sizes = [33_000, 33_000]
    overhead = 3 * (len(head) + 2) + len(b"--b--\r\n")
    sizes.append(total - overhead - sum(sizes))
    return b"".join(head + padded(size) + b"\r\n" for size in sizes) + b"--b--\r\n"


@pytest.mark.parametrize("chunked", [False, True])
def test_max_request_bytes(http: httpx.Client, chunked: bool):
    def send(total: int) -> httpx.Response:
        body = multipart_of(total)
        assert len(body) == total
        content = iter([body[:5_000], body[5_000:]]) if chunked else body
        return http.post("/predict", content=content, headers={"Content-Type": "multipart/form-data; boundary=b"})

    assert send(100_000).json()["summary"] == {"ok": 3, "failed": 0}
    assert is_problem(send(100_001), 413, "request_too_large", "max_request_bytes")


def test_max_image_pixels_and_side(http: httpx.Client):
    shapes = {(100, 100): None, (101, 100): "image_too_large", (200, 50): None, (201, 49): "image_too_large"}
    for (width, height), code in shapes.items():
        answer = http.post("/predict", files={"f": ("x.png", image(width, height))})
        assert error_of(answer) == code, (width, height)
        assert answer.status_code == (422 if code else 200)


def test_max_part_header_bytes(http: httpx.Client):
    def send(nbytes: int) -> httpx.Response:
        head = b'Content-Disposition: form-data; name="f"; filename="x.png"\r\n'
        # Every byte between the line of the boundary and the empty line counts.
        head += b"X-Filler: " + b"x" * (nbytes - len(head) - len(b"X-Filler: \r\n")) + b"\r\n"
        body = b"--b\r\n" + head + b"\r\n" + SMALL_IMAGE + b"\r\n--b--\r\n"
        return http.post("/predict", content=body, headers={"Content-Type": "multipart/form-data; boundary=b"})

    assert send(512).status_code == 200
    assert is_problem(send(513), 431, "headers_too_large", "max_part_header_bytes")


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


def test_reading_of_a_refused_large_body_ends(strict: Gateway):
    with strict.connect(30) as client:
        client.sendall(
            b"POST /predict HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Type: text/plain\r\n\r\n"
        )
        chunk = b"10000\r\n" + bytes(0x10000) + b"\r\n"
        sent, started = 0, time.monotonic()
        with pytest.raises(OSError):  # noqa: PT012  # the connection is closed under the endless body
            while time.monotonic() - started < 20:
                client.sendall(chunk)
                sent += len(chunk)
    assert sent < 200 * MIB


def test_refused_client_gets_the_response_though_its_body_is_unread(strict: Gateway):
    body = bytes(20 * MIB)
    for _ in range(5):
        answer = httpx.post(f"{strict.url}/predict", content=body, headers={"Content-Type": "text/plain"}, timeout=30)
        assert answer.status_code == 415
        assert answer.headers["connection"] == "close"
