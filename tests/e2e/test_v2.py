"""Clients of Triton and KServe in front of the gateway: tritonclient.http unchanged, and JSON by hand."""

import re
from collections.abc import Iterator

import numpy as np
import pytest
from tritonclient.http import InferenceServerClient, InferRequestedOutput, InferResult

from tests.gateway.api.tensors import images
from tests.photos import photo
from tests.processes import PROJECT, Gateway, python

MODEL = "ensemble_model"
CAT = photo("cat")


@pytest.fixture(scope="module")
def v2(real_gateway: Gateway) -> Iterator[InferenceServerClient]:
    with InferenceServerClient(real_gateway.url.removeprefix("http://")) as client:
        yield client


def best(result: InferResult) -> list[list[str]]:
    return [[cell.decode().split(":", 2)[2] for cell in row] for row in result.as_numpy("PREDICTION")]


def test_one_image_gets_the_scores_of_predict(v2, real_client):
    result = v2.infer(MODEL, [images(CAT)], request_id="mine")
    assert result.get_response()["id"] == "mine"
    assert (result.get_response()["model_name"], result.get_response()["model_version"]) == (MODEL, "1")
    scores = result.as_numpy("PREDICTION")
    assert (scores.shape, scores.dtype) == ((1, 1000), np.float32)
    assert scores.sum() == pytest.approx(1, abs=1e-4)
    assert result.as_numpy("STATUS").tolist() == [b"ok"]
    predictions = real_client.post("/predict", params={"top_k": 1000}, files={"f": CAT}).json()["results"][0][
        "predictions"
    ]
    by_id = {each["class_id"]: each["score"] for each in predictions}
    # /predict reads Triton's six digits; these are the model's own numbers.
    assert scores[0] == pytest.approx([by_id[number] for number in range(1000)], abs=1e-6)


def test_results_of_many_images_keep_their_order(v2):
    formats = [photo("cat"), photo("coffee", "PNG"), photo("cat", "WEBP"), photo("coffee", "BMP")] * 10
    outputs = [InferRequestedOutput("PREDICTION", class_count=1), InferRequestedOutput("STATUS")]
    result = v2.infer(MODEL, [images(*formats)], outputs=outputs)
    assert result.as_numpy("STATUS").tolist() == [b"ok"] * 40
    assert best(result) == [["Egyptian cat"], ["espresso"]] * 20


def test_readme_example_prints_its_documented_output(real_gateway: Gateway):
    (code,) = re.findall(r"```python\n(.*?/infer.*?)```", (PROJECT / "README.md").read_text(), re.DOTALL)
    documented = re.search(r"print\(.*\)  # (.*)", code)
    code = code.replace("http://127.0.0.1:8080", real_gateway.url)
    assert documented
    assert python("-c", code).stdout.strip() == documented[1]
