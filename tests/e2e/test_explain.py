"""Explanations by the shipped network, in front of a real Triton."""

import json
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

from tests.asking import encode

CAT = Path(__file__).parents[2] / "examples" / "cat.jpg"
LABEL = "Egyptian cat"
PART = 0.25
"""The share of the image that is hidden: its hottest part, then its coldest part."""


def score(http: httpx.Client, pixels: np.ndarray) -> float:
    files = {"files": ("a.png", encode(pixels, ".png"))}
    answer = http.post("/predict", params={"labels": LABEL, "threshold": 0}, files=files)
    (prediction,) = answer.json()["results"][0]["predictions"]
    return prediction["score"]


@pytest.mark.parametrize("parameters", [{"masks": 120}, {"method": "occlusion", "grid": 6}], ids=str)
def test_hidden_hot_part_costs_score_and_a_cold_one_none(real_client: httpx.Client, parameters: dict[str, str | int]):
    files = {"files": ("cat.jpg", CAT.read_bytes())}
    headers = {"Accept": "application/x-ndjson"}
    with real_client.stream(
        "POST", "/explain", params=parameters, files=files, headers=headers, timeout=300
    ) as response:
        *lines, last = map(json.loads, response.iter_lines())
    found = last["explanation"]
    assert (found["label"], found["class_id"]) == (LABEL, 285)
    done = [line["progress"]["done"] for line in lines]
    assert done == sorted(done)
    assert {line["progress"]["total"] for line in lines} <= {found["masks"] + 1}
    pixels = np.asarray(Image.open(CAT).convert("RGB"))
    heat = Image.fromarray(np.array(found["values"], np.float32)).resize((pixels.shape[1], pixels.shape[0]))
    order = np.argsort(np.asarray(heat).reshape(-1))
    count = int(PART * len(order))
    scores = {}
    for name, hidden in (("cold", order[:count]), ("hot", order[-count:])):
        masked = pixels.reshape(-1, 3).copy()
        masked[hidden] = pixels.mean(axis=(0, 1))
        scores[name] = score(real_client, masked.reshape(pixels.shape))
    assert scores["hot"] < 0.9 * found["score"]
    assert scores["cold"] > found["score"]
