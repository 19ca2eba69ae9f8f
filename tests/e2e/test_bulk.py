"""Requests of many files."""

import json

import cv2
import httpx
import numpy as np

from gateway.settings import MIB
from tests.photos import photo, unlike_any


def cats(count: int) -> list[tuple[str, tuple[str, bytes]]]:
    return [("files", (f"{index}.jpg", photo("cat"))) for index in range(count)]


def test_a_thousand_files_get_a_thousand_results_in_order(client: httpx.Client):
    answer = client.post("/predict", params={"top_k": 1}, files=cats(1_000))
    assert answer.status_code == 200
    results = answer.json()["results"]
    assert [(result["index"], result["filename"]) for result in results] == [(i, f"{i}.jpg") for i in range(1_000)]
    assert {result["predictions"][0]["label"] for result in results} == {"Egyptian cat"}


def test_file_1001_is_refused(client: httpx.Client):
    answer = client.post("/predict", files=cats(1_001))
    assert answer.status_code == 413
    problem = answer.json()
    assert (problem["code"], problem["limit"], problem["value"]) == ("too_many_files", "max_files", 1_000)


def test_bad_files_get_errors_and_the_others_results(client: httpx.Client):
    cat, coffee = photo("cat"), photo("coffee", "PNG")
    files = [
        ("cat.jpg", cat),
        ("notes.txt", b"hello"),
        ("empty.jpg", b""),
        ("cut.jpg", cat[: len(cat) // 2]),
        ("c", coffee),
    ]
    answer = client.post("/predict", files=[("files", file) for file in files])
    assert answer.status_code == 200
    assert answer.json()["summary"] == {"ok": 2, "failed": 3}
    outcomes = [
        result["error"]["code"] if result["error"] else result["predictions"][0]["label"]
        for result in answer.json()["results"]
    ]
    assert outcomes == ["Egyptian cat", "unsupported_format", "empty_file", "truncated_image", "espresso"]


def test_results_stream_as_json_lines_with_a_summary_at_the_end(client: httpx.Client):
    headers = {"Accept": "application/x-ndjson"}
    with client.stream("POST", "/predict", files=cats(40), headers=headers) as answer:
        assert answer.headers["content-type"] == "application/x-ndjson"
        *results, summary = [json.loads(line) for line in answer.iter_lines()]
    assert sorted(result["index"] for result in results) == list(range(40))
    assert summary == {"model": {"name": "ensemble_model", "version": "1"}, "summary": {"ok": 40, "failed": 0}}


def test_a_thousand_large_files_need_bounded_memory(start_gateway, light_triton):
    jpeg = two_megabyte_photo()
    boundary = "boundary"
    head = f'--{boundary}\r\nContent-Disposition: form-data; name="files"; filename="large.jpg"\r\n\r\n'.encode()

    with start_gateway(triton_url=light_triton.url, default_timeout_seconds=300) as gateway, gateway.client() as http:
        before = gateway.resident_bytes()
        peak = before

        def body():
            nonlocal peak
            for number in range(1_000):
                yield head + unlike_any(jpeg) + b"\r\n"
                if number % 10 == 0:  # to look takes as long as to send: it goes through all processes
                    peak = max(peak, gateway.resident_bytes())
            yield f"--{boundary}--\r\n".encode()

        content_type = f"multipart/form-data; boundary={boundary}"
        answer = http.post(
            "/predict", content=body(), headers={"Content-Type": content_type}, params={"top_k": 1}, timeout=600
        )
        assert answer.json()["summary"] == {"ok": 1_000, "failed": 0}
        assert peak - before < 300 * MIB


def two_megabyte_photo() -> bytes:
    """A small photograph of 2 MB, nearly all in application segments, as cameras write thumbnails and maker notes.

    Small, because the time is that of the upload and not that of a thousand large pictures' decoding.
    """
    jpeg = cv2.imencode(".jpg", cv2.resize(cv2.imdecode(np.frombuffer(photo("motorcycle"), np.uint8), 1), (64, 48)))[
        1
    ].tobytes()
    filler = b"".join(b"\xff\xea\xff\xff" + bytes(0xFFFD) for _ in range((2_000_000 - len(jpeg)) // 0xFFFF + 1))
    return jpeg[:2] + filler + jpeg[2:]
