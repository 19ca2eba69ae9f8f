"""Requests of many files."""

import httpx
import pytest

from gateway.settings import MIB
from tests.photos import photo, pixels, unlike_any
from tests.processes import Gateway, wait_for
from tests.samples import encode


def cats(count: int) -> list[tuple[str, tuple[str, bytes]]]:
    return [("files", (f"{index}.jpg", photo("cat"))) for index in range(count)]


def test_thousand_files_get_results_in_order(client: httpx.Client):
    answer = client.post("/predict", params={"top_k": 1}, files=cats(1_000))
    assert answer.status_code == 200
    results = answer.json()["results"]
    assert [(result["index"], result["filename"]) for result in results] == [(i, f"{i}.jpg") for i in range(1_000)]
    assert {result["predictions"][0]["label"] for result in results} == {"Egyptian cat"}


@pytest.mark.parametrize(
    ("parameters", "status", "code"),
    [({"model": "nope"}, 404, "model_not_found"), ({"labels": "Egyptian cart"}, 422, "invalid_parameter")],
)
def test_wrong_parameter_refuses_all_files_and_leaves_nothing_in_flight(
    gateway: Gateway, client: httpx.Client, parameters: dict[str, str], status: int, code: str
):
    answer = client.post("/predict", params=parameters, files=cats(200), timeout=30)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    wait_for(lambda: gateway.metric("gateway_images_in_flight") == 0)
    assert client.post("/predict", files=cats(1)).status_code == 200


def test_thousand_large_files_need_bounded_memory(start_gateway, light_triton):
    jpeg = large_photo()
    boundary = "boundary"
    head = f'--{boundary}\r\nContent-Disposition: form-data; name="files"; filename="large.jpg"\r\n\r\n'.encode()

    with start_gateway(triton_url=light_triton.url, default_timeout_seconds=300) as gateway, gateway.client() as http:
        before = gateway.resident_bytes()
        peak = before

        def body():
            nonlocal peak
            for number in range(1_000):
                yield head + unlike_any(jpeg) + b"\r\n"
                if number % 10 == 0:  # reading the memory of all processes takes as long as sending a file
                    peak = max(peak, gateway.resident_bytes())
            yield f"--{boundary}--\r\n".encode()

        content_type = f"multipart/form-data; boundary={boundary}"
        answer = http.post(
            "/predict", content=body(), headers={"Content-Type": content_type}, params={"top_k": 1}, timeout=600
        )
        assert answer.json()["summary"] == {"ok": 1_000, "failed": 0}
        assert peak - before < 300 * MIB


def large_photo() -> bytes:
    """A JPEG of few pixels and 600 kB, nearly all in application segments, where cameras write thumbnails."""
    jpeg = encode(pixels("motorcycle").resize((64, 48)), "JPEG")
    filler = b"".join(b"\xff\xea\xff\xff" + bytes(0xFFFD) for _ in range((600_000 - len(jpeg)) // 0xFFFF + 1))
    return jpeg[:2] + filler + jpeg[2:]
