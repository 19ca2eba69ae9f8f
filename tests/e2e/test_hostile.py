"""Requests of broken images affect no other client and leave no memory behind."""

import threading

import httpx
import numpy as np

from gateway.settings import MIB
from tests.photos import photo, undecodable, unlike_any
from tests.processes import Gateway

BAD_FILES = 10_000


def outcomes(answer: httpx.Response) -> list[str]:
    assert answer.headers["content-type"] == "application/json", answer.text
    return [result["error"]["code"] if result["error"] else "ok" for result in answer.json()["results"]]


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
