"""Requests of many files need bounded memory, and leave none behind."""

import json
from collections.abc import Iterator
from itertools import chain

import httpx
import numpy as np
import pytest

from gateway.settings import MIB
from tests.photos import photo, pixels, unlike_any
from tests.processes import Gateway
from tests.samples import encode

COUNT = 1_000
BAD_FILES = 10_000


def images() -> Iterator[bytes]:
    """JPEGs of few pixels and 600 kB, nearly all in application segments, where cameras write thumbnails."""
    jpeg = encode(pixels("motorcycle").resize((64, 48)), "JPEG")
    filler = b"".join(b"\xff\xea\xff\xff" + bytes(0xFFFD) for _ in range((600_000 - len(jpeg)) // 0xFFFF + 1))
    for _ in range(COUNT):
        yield unlike_any(jpeg[:2] + filler + jpeg[2:])


def form() -> tuple[dict[str, str], Iterator[bytes]]:
    head = b'--b\r\nContent-Disposition: form-data; name="f"; filename="large.jpg"\r\n\r\n'
    parts = (head + image + b"\r\n" for image in images())
    return {"Content-Type": "multipart/form-data; boundary=b"}, chain(parts, [b"--b--\r\n"])


def tensor() -> tuple[dict[str, str], Iterator[bytes]]:
    parameters = {"binary_data_size": (4 + len(next(images()))) * COUNT}
    image = {"name": "IMAGE", "shape": [COUNT], "datatype": "BYTES", "parameters": parameters}
    head = json.dumps({"inputs": [image], "outputs": [{"name": "STATUS"}]}).encode()
    elements = (len(image).to_bytes(4, "little") + image for image in images())
    return {"Inference-Header-Content-Length": str(len(head))}, chain([head], elements)


WAYS = {"/predict?top_k=1": form, "/v2/models/ensemble_model/infer": tensor}


@pytest.mark.parametrize("path", WAYS)
def test_thousand_large_files_need_bounded_memory(start_gateway, light_triton, path: str):
    headers, body = WAYS[path]()
    with start_gateway(triton_url=light_triton.url, default_timeout_seconds=300) as gateway, gateway.client() as http:
        before = peak = gateway.resident_bytes()

        def watched() -> Iterator[bytes]:
            nonlocal peak
            for number, piece in enumerate(body):
                yield piece
                if number % 10 == 0:  # reading the memory of all processes takes as long as sending a file
                    peak = max(peak, gateway.resident_bytes())

        answer = http.post(path, content=watched(), headers=headers, timeout=600).json()
    assert answer.get("summary") == {"ok": COUNT, "failed": 0} or answer["outputs"][0]["data"] == ["ok"] * COUNT
    assert peak - before < 300 * MIB


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
