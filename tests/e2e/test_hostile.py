"""Hostile, broken and truncated requests get a clear response and affect no other client; the process survives."""

import socket
import threading

import httpx
import numpy as np
import pytest

from gateway.settings import MIB
from tests.photos import photo, undecodable, unlike_any
from tests.processes import Gateway

HEAD = b'--b\r\nContent-Disposition: form-data; name="f"; filename="x.jpg"\r\n\r\n'
TOP_K = b'--b\r\nContent-Disposition: form-data; name="top_k"\r\n\r\nx\r\n'
MULTIPART = {"Content-Type": "multipart/form-data; boundary=b"}
BAD_FILES = 10_000


def outcomes(answer: httpx.Response) -> list[str]:
    assert answer.headers["content-type"] == "application/json", answer.text
    return [result["error"]["code"] if result["error"] else "ok" for result in answer.json()["results"]]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (HEAD + b"x", 400, "invalid_multipart"),
        (b"--b--\r\n", 400, "no_files"),
        (b"--b\r\nA: " + b"b" * 700_000, 431, "headers_too_large"),
        (b"--b\r\n" + b"A: b\r\n" * 100_000, 431, "headers_too_large"),
        (b'--b\r\nContent-Disposition: form-data; name="x"\r\n\r\n1\r\n--b--\r\n', 400, "unknown_field"),
        (TOP_K + HEAD + b"x\r\n--b--\r\n", 422, "invalid_parameter"),
    ],
)  # fmt: skip
def test_malformed_form_is_refused_with_its_code(client: httpx.Client, body: bytes, status: int, code: str):
    answer = client.post("/predict", content=body, headers=MULTIPART)
    assert answer.headers["content-type"] == "application/problem+json"
    assert (answer.status_code, answer.json()["code"]) == (status, code)


def test_each_of_a_thousand_empty_files_gets_an_error(client: httpx.Client):
    answer = client.post("/predict", content=(HEAD + b"\r\n") * 1_000 + b"--b--\r\n", headers=MULTIPART)
    assert answer.status_code == 422
    assert outcomes(answer) == ["empty_file"] * 1_000


def test_wrong_content_length_harms_only_its_own_request(gateway: Gateway, client: httpx.Client):
    body = HEAD + photo("cat") + b"\r\n--b--\r\n"
    for claimed in (len(body) - 10, len(body) + 10):
        with gateway.connect() as raw:
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


def test_client_with_only_bad_images_does_not_affect_others(real_gateway: Gateway):
    stop = threading.Event()

    def attack() -> None:
        with real_gateway.client() as http:
            while not stop.is_set():
                assert set(outcomes(http.post("/predict", files=[("f", ("x", undecodable()))] * 8))) == {
                    "undecodable_image"
                }

    attackers = [threading.Thread(target=attack) for _ in range(2)]
    for attacker in attackers:
        attacker.start()
    try:
        with real_gateway.client() as http:
            for _ in range(40):
                answer = http.post("/predict", files={"f": ("c.jpg", unlike_any(photo("cat")))}).json()
                assert answer["results"][0]["predictions"][0]["label"] == "Egyptian cat"
    finally:
        stop.set()
        for attacker in attackers:
            attacker.join(30)
