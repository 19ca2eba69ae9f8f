"""Hostile, broken and truncated requests get a clear response and affect no other client; the process survives."""

import contextlib
import json
import random
import socket
import threading
import zlib

import httpx
import numpy as np
import pytest

from gateway.settings import MIB
from tests.photos import photo, unlike_any
from tests.processes import Gateway

pytestmark = pytest.mark.triton

HEAD = b'--b\r\nContent-Disposition: form-data; name="f"; filename="x.jpg"\r\n\r\n'
TOP_K = b'--b\r\nContent-Disposition: form-data; name="top_k"\r\n\r\nx\r\n'
NESTED = b"--b\r\nContent-Type: multipart/mixed; boundary=c\r\n\r\n--c\r\n\r\n\r\n--c--\r\n\r\n--b--\r\n"
MULTIPART = {"Content-Type": "multipart/form-data; boundary=b"}
BAD_FILES = 10_000


def outcomes(answer: httpx.Response) -> list[str]:
    assert answer.headers["content-type"] == "application/json", answer.text
    return [result["error"]["code"] if result["error"] else "ok" for result in answer.json()["results"]]


@pytest.mark.parametrize("image_format", ["JPEG", "PNG", "WEBP", "BMP"])
def test_truncated_file_is_truncated_or_undecodable(client: httpx.Client, image_format: str):
    whole = photo("cat", image_format)
    files = [("f", (f"{percent}", whole[: len(whole) * percent // 100])) for percent in range(5, 100, 5)]
    codes = outcomes(client.post("/predict", files=[*files, ("f", ("whole", whole))]))
    assert codes[-1] == "ok"
    assert set(codes[:-1]) <= {"truncated_image", "invalid_image", "undecodable_image"}


def test_flipped_bits_never_fail_the_service(client: httpx.Client):
    chance = random.Random(7)
    for image_format in ("JPEG", "PNG", "WEBP", "BMP"):
        files = []
        for number in range(60):
            damaged = bytearray(photo("cat", image_format))
            for _ in range(chance.choice((1, 10, 100))):
                damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
            files.append(("f", (f"{number}", bytes(damaged))))
        answer = client.post("/predict", files=[*files, ("f", ("good", photo("cat")))])
        assert answer.status_code == 200
        assert outcomes(answer)[-1] == "ok"
        assert set(outcomes(answer)) <= {
            "ok", "truncated_image", "invalid_image", "undecodable_image", "image_too_large", "unsupported_format"
        }  # fmt: skip


def test_decompression_bomb_costs_little_time_and_memory(gateway: Gateway, client: httpx.Client):
    bomb = png_of_nothing(20_000, 20_000)
    assert len(bomb) < 500_000
    client.post("/predict", files={"f": ("bomb.png", bomb)})
    before = gateway.resident_bytes()
    milliseconds = []
    for _ in range(20):
        answer = client.post("/predict", files={"f": ("bomb.png", bomb)})
        assert outcomes(answer) == ["image_too_large"]
        milliseconds.append(float(answer.headers["server-timing"].rpartition("total;dur=")[2]))
    # The minimum: a busy machine makes some of them wait, and 400 megapixels would make each take a second.
    assert min(milliseconds) < 50
    assert gateway.resident_bytes() - before < 50 * MIB


def png_of_nothing(width: int, height: int) -> bytes:
    """A gray PNG whose pixels are all zero, as small as it gets."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + name + data + zlib.crc32(name + data).to_bytes(4, "big")

    packer = zlib.compressobj(9)
    rows = b"".join(packer.compress(bytes(width // 8 + 1)) for _ in range(height)) + packer.flush()
    header = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([1, 0, 0, 0, 0])
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (HEAD + b"x", 400, "invalid_multipart"),
        (HEAD + b"x\r\n--b", 400, "invalid_multipart"),
        (b"", 400, "invalid_multipart"),
        (b"--b--\r\n", 400, "no_files"),
        (b"--b\r\nA: " + b"b" * 700_000, 431, "headers_too_large"),
        (b"--b\r\n" + b"A: b\r\n" * 100_000, 431, "headers_too_large"),
        (b'--b\r\nContent-Disposition: form-data; name="x"\r\n\r\n1\r\n--b--\r\n', 400, "unknown_field"),
        (TOP_K + HEAD + b"x\r\n--b--\r\n", 422, "invalid_parameter"),
        (NESTED, 400, "invalid_multipart"),
        (b"\x00" * 1_000, 400, "invalid_multipart"),
    ],
)  # fmt: skip
def test_a_malformed_form_is_a_problem_of_the_client(client: httpx.Client, body: bytes, status: int, code: str):
    answer = client.post("/predict", content=body, headers=MULTIPART)
    assert answer.headers["content-type"] == "application/problem+json"
    assert (answer.status_code, answer.json()["code"]) == (status, code)


def test_a_missing_closing_boundary_does_not_drop_the_last_file_silently(client: httpx.Client):
    body = HEAD + photo("cat") + b"\r\n" + HEAD + photo("cat") + b"\r\n"
    answer = client.post("/predict", content=body, headers=MULTIPART)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_multipart")


def test_a_thousand_empty_files_get_a_thousand_errors(client: httpx.Client):
    answer = client.post("/predict", content=(HEAD + b"\r\n") * 1_000 + b"--b--\r\n", headers=MULTIPART)
    assert answer.status_code == 422
    assert outcomes(answer) == ["empty_file"] * 1_000


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "C:\\x\\cat.jpg", "a\x07b\x1b[31m.jpg", "n" * 10_000, "猫.jpg", ""]
)
def test_names_are_echoed_clean(client: httpx.Client, name: str):
    label = client.post("/predict", files={"f": (name or "x", b"no image")}).json()["results"][0]["filename"]
    assert len(label) <= 255
    assert not set(label) & set("/\\\x07\x1b\r\n")


@pytest.mark.parametrize(
    "content_type", ["multipart/form-data", "multipart/form-data; boundary=", "text/html", "image"]
)
def test_meaningless_content_type_is_refused(client: httpx.Client, content_type: str):
    answer = client.post("/predict", content=HEAD, headers={"Content-Type": content_type})
    assert answer.status_code in {400, 415}
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    ("request_bytes", "status", "code"),
    [
        (
            b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            400,
            "invalid_request",
        ),
        (b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 400, "invalid_request"),
        (b"POST /predict HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n", 400, "invalid_request"),
        (b"POST /predict HTTP/1.1\r\n" + b"A: " + b"x" * 200_000 + b"\r\n\r\n", 431, "headers_too_large"),
        (b"GET /?" + b"x" * 200_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 431, "headers_too_large"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200), 400, "invalid_request"),
        (b"GET / HTTP/9.9\r\n\r\n", 400, "invalid_request"),
    ],
)
def test_broken_http_is_refused_and_the_connection_closed(
    gateway: Gateway, client: httpx.Client, request_bytes: bytes, status: int, code: str
):
    with socket.create_connection(("127.0.0.1", int(gateway.url.rpartition(":")[2])), timeout=60) as raw:
        answer = b""
        with contextlib.suppress(OSError):  # it may be closed before all is sent, or read
            raw.sendall(request_bytes)
            raw.shutdown(socket.SHUT_WR)
            while part := raw.recv(65_536):
                answer += part
    head, _, body = answer.partition(b"\r\n\r\n")
    # A client that keeps sending may see only that the connection was reset, not the refusal.
    if answer or len(request_bytes) < 1_000:
        assert head.startswith(b"HTTP/1.1 %d " % status), answer
        assert b"content-type: application/problem+json" in head
        assert (json.loads(body)["status"], json.loads(body)["code"]) == (status, code)
    assert client.get("/health/live").status_code == 200


def test_wrong_content_length_harms_only_its_own_request(gateway: Gateway, client: httpx.Client):
    body = HEAD + photo("cat") + b"\r\n--b--\r\n"
    for claimed in (len(body) - 10, len(body) + 10):
        with socket.create_connection(("127.0.0.1", int(gateway.url.rpartition(":")[2])), timeout=60) as raw:
            head = (
                "POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=b\r\n"
                f"Content-Length: {claimed}\r\n\r\n"
            )
            raw.sendall(head.encode() + body)
            raw.shutdown(socket.SHUT_WR)
            answer = raw.recv(65_536)
        assert not answer.startswith((b"HTTP/1.1 200", b"HTTP/1.1 500"))
    assert outcomes(client.post("/predict", files={"f": ("c.jpg", photo("cat"))})) == ["ok"]


def test_ten_thousand_bad_files_leave_no_memory_behind(gateway: Gateway, client: httpx.Client):
    chance = np.random.default_rng(3)
    cat = photo("cat")
    kinds = [
        b"",
        b"text",
        cat[:5_000],
        chance.bytes(20_000),
        b"GIF89a" + chance.bytes(500),
        photo("cat", "PNG")[:9_000],
    ]
    batch = [("f", (f"{n}", kinds[n % len(kinds)])) for n in range(1_000)]
    client.post("/predict", files=batch)
    before = gateway.resident_bytes()
    for _ in range(BAD_FILES // 1_000):
        assert client.post("/predict", files=batch).json()["summary"] == {"ok": 0, "failed": 1_000}
    assert gateway.resident_bytes() - before < 50 * MIB


def undecodable() -> bytes:
    """A JPEG that passes inspection, its header and ending being whole, but has no image data to decode."""
    cat = photo("cat", "PNG")
    start = cat.index(b"IDAT") - 4
    data = bytes(int.from_bytes(cat[start : start + 4], "big"))
    chunk = len(data).to_bytes(4, "big") + b"IDAT" + data + zlib.crc32(b"IDAT" + data).to_bytes(4, "big")
    return cat[:start] + chunk + cat[cat.index(b"IEND") - 4 :]


def test_undecodable_image_among_a_thousand_leaves_the_other_results(client: httpx.Client):
    good = photo("cat")
    files = [("f", (f"{n}", undecodable() if n == 500 else good)) for n in range(1_000)]
    codes = outcomes(client.post("/predict", files=files, params={"top_k": 1}))
    assert codes[500] == "undecodable_image"
    assert codes.count("ok") == 999


def test_a_client_that_sends_only_bad_images_does_not_harm_another(gateway: Gateway):
    stop = threading.Event()

    def attack() -> None:
        with gateway.client() as http:
            while not stop.is_set():
                assert set(outcomes(http.post("/predict", files=[("f", ("x", undecodable()))] * 8))) == {
                    "undecodable_image"
                }

    attackers = [threading.Thread(target=attack) for _ in range(2)]
    for attacker in attackers:
        attacker.start()
    try:
        with gateway.client() as http:
            for _ in range(40):
                answer = http.post("/predict", files={"f": ("c.jpg", unlike_any(photo("cat")))}).json()
                assert answer["results"][0]["predictions"][0]["label"] == "Egyptian cat"
    finally:
        stop.set()
        for attacker in attackers:
            attacker.join(30)
