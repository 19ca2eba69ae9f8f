"""The same image in every form gets the same result, whether the gateway or Triton decodes it, however it is sent."""

import json
from functools import partial

import httpx
import numpy as np
import pytest

from tests.asking import encode
from tests.photos import photo
from tests.processes import Gateway
from tests.samples import Sample, by_pillow, samples

MOST_FILES = 45
"""Files in a request, so that its response stays within `max_predictions`."""
SAME, ALIKE = 1e-3, 0.12
"""Largest difference of a probability: for a lossless form, and for a form that changes the pixels a little."""
COARSE_LEVELS = 8.0
"""A form whose pixels differ more from the photograph is compared with Pillow's decoding of it instead."""


def scores(client: httpx.Client, sample_list: list[Sample]) -> dict[str, np.ndarray]:
    """Each form's scores by class; every file must have been classified."""
    results = []
    for part in (sample_list[at : at + MOST_FILES] for at in range(0, len(sample_list), MOST_FILES)):
        files = [("f", (sample.name, sample.data)) for sample in part]
        results += client.post("/predict", files=files, params={"top_k": 1000}).json()["results"]
    found = {}
    for sample, result in zip(sample_list, results, strict=True):
        assert result["status"] == "ok", (sample.name, result["error"])
        vector = np.zeros(1000)
        for prediction in result["predictions"]:
            vector[prediction["class_id"]] = prediction["score"]
        found[sample.name] = vector
    return found


@pytest.mark.parametrize("decode", ["auto", pytest.param("always", marks=pytest.mark.long)])
def test_every_form_of_a_file_gets_the_result_of_its_image(
    decode: str, real_gateway: Gateway, decoding_gateway: Gateway, capsys: pytest.CaptureFixture
):
    sample_list = list(samples())
    with {"auto": real_gateway, "always": decoding_gateway}[decode].client() as client:
        found = scores(client, sample_list)
        expected = {}
        for sample in sample_list:
            picture = by_pillow(sample.data) if sample.far > COARSE_LEVELS else sample.picture
            key = picture.tobytes()
            if key not in expected:
                reference = Sample("BMP", "reference", partial(encode, picture, ".bmp"), 0, picture)
                (expected[key],) = scores(client, [reference]).values()
            expected[sample.name] = expected[key]
    worst: dict[str, float] = {}
    for sample in sample_list:
        distance = float(np.abs(found[sample.name] - expected[sample.name]).max())
        worst[sample.format] = max(worst.get(sample.format, 0), distance)
        assert found[sample.name].argmax() == expected[sample.name].argmax(), sample.name
        assert distance <= (ALIKE if 0 < sample.far <= COARSE_LEVELS else SAME), (sample.name, distance)
    with capsys.disabled():
        distances = ", ".join(f"{name} {distance:.4f}" for name, distance in worst.items())
        print(f"\ndecode={decode}: largest difference of a probability by format: {distances}")  # noqa: T201  # the figure


@pytest.mark.parametrize("media_type", ["image/jpeg", "image/png", "image/x-whatever", "application/octet-stream"])
def test_raw_body_is_recognised_by_its_content(real_client: httpx.Client, media_type: str):
    answer = real_client.post("/predict", content=photo("coffee"), headers={"Content-Type": media_type})
    assert answer.json()["results"][0]["predictions"][0]["label"] == "espresso"


PART = b'--b\r\nContent-Disposition: form-data; name="f"; filename="x.jpg"\r\n\r\n' + photo("cat") + b"\r\n"


def chunk(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)


def test_first_line_arrives_before_the_last_file_was_sent(gateway: Gateway):
    head = b"POST /predict HTTP/1.1\r\nHost: x\r\nAccept: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n"
    head += b"Content-Type: multipart/form-data; boundary=b\r\n\r\n"
    received = b""
    with gateway.connect(30) as raw:
        raw.sendall(head + chunk(PART + b"--b\r\n"))
        while b"Egyptian cat" not in received:
            received += raw.recv(65_536)
        raw.sendall(chunk(PART[5:] + b"--b--\r\n") + chunk(b""))
        while b'"summary"' not in received:
            received += raw.recv(65_536)
    lines = [json.loads(line) for line in received.split(b"\r\n") if line.startswith(b"{")]
    assert [line.get("index") for line in lines] == [0, 1, None]
