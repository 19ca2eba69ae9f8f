"""The default model behind the gateway gives the results of PIL, torchvision and eager PyTorch, in batches."""

import json
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import gevent
import httpx
import numpy as np
import pytest
from PIL import Image
from tritonclient.http import InferenceServerClient

from gateway.triton.contract import CLASSIFIER, ENSEMBLE_MODEL, PREPROCESSOR
from tests.asking import encode
from tests.gateway.api.tensors import images
from tests.photos import PHOTOS, SAVED_AS, photo, unlike_any
from tests.processes import PROJECT, Gateway, wait_for
from tests.reference import reference_probabilities

TOLERANCE = 1e-3
FORMS = [(name, image_format) for name in PHOTOS for image_format in SAVED_AS]


@pytest.fixture(params=["auto", "always"])
def either_client(request: pytest.FixtureRequest, real_gateway: Gateway, decoding_gateway: Gateway):
    """A client of a gateway whose Triton decodes, and of a gateway that decodes itself."""
    with {"auto": real_gateway, "always": decoding_gateway}[request.param].client() as http:
        yield http


@cache
def labels() -> list[str]:
    # Its import takes seconds, too long for the collection of tests.
    from torchvision.models import EfficientNet_B0_Weights

    return EfficientNet_B0_Weights.IMAGENET1K_V1.meta["categories"]


def check(result: dict, encoded: bytes) -> None:
    expected = reference_probabilities(encoded)
    assert result["status"] == "ok", result
    scores = {prediction["class_id"]: prediction["score"] for prediction in result["predictions"]}
    assert result["predictions"][0]["class_id"] == int(expected.argmax())
    assert result["predictions"][0]["label"] == labels()[int(expected.argmax())]
    served = np.array([scores[class_id] for class_id in range(len(expected))])
    assert np.abs(served - expected).max() <= TOLERANCE


def test_photographs_of_one_request_get_the_same_results(either_client: httpx.Client):
    files = [("files", (f"{name}.{image_format}", photo(name, image_format))) for name, image_format in FORMS]
    answer = either_client.post("/predict", params={"top_k": 1000}, files=files)
    assert answer.json()["summary"] == {"ok": len(files), "failed": 0}
    for (_, (filename, encoded)), result in zip(files, answer.json()["results"], strict=True):
        assert result["filename"] == filename
        check(result, encoded)


def test_single_images_of_many_clients_run_as_batches(real_gateway: Gateway, triton_client):
    def counts() -> dict[str, tuple[int, int]]:
        """For each step, how many images ran, and in how many executions."""
        found = [triton_client.get_inference_statistics(each).model_stats[0] for each in (PREPROCESSOR, CLASSIFIER)]
        return {each.name: (each.inference_count, each.execution_count) for each in found}

    names, before = list(PHOTOS), counts()
    with real_gateway.client() as http, ThreadPoolExecutor(32) as clients:

        def classify(number: int) -> int:
            picture = unlike_any(photo(names[number % len(names)]))
            return http.post("/predict", files={"f": ("c.jpg", picture)}).status_code

        assert set(clients.map(classify, range(100))) == {200}
    # Triton counts an execution after it has sent its responses.
    wait_for(lambda: all(inferences - before[model][0] >= 100 for model, (inferences, _) in counts().items()))
    for model, (inferences, executions) in counts().items():
        assert executions - before[model][1] < inferences - before[model][0]


def test_client_of_triton_gets_the_scores_of_predict(real_gateway: Gateway, real_client: httpx.Client):
    with InferenceServerClient(real_gateway.url.removeprefix("http://")) as client:
        result = client.infer(ENSEMBLE_MODEL, [images(photo("cat"))], request_id="mine")
    assert result.get_response()["id"] == "mine"
    assert (result.get_response()["model_name"], result.get_response()["model_version"]) == (ENSEMBLE_MODEL, "1")
    scores = result.as_numpy("PREDICTION")
    assert (scores.shape, scores.dtype) == ((1, 1000), np.float32)
    assert scores.sum() == pytest.approx(1, abs=1e-4)
    assert result.as_numpy("STATUS").tolist() == [b"ok"]
    answer = real_client.post("/predict", params={"top_k": 1000}, files={"f": photo("cat")}).json()
    by_id = {each["class_id"]: each["score"] for each in answer["results"][0]["predictions"]}
    # /predict reads Triton's six digits; these are the model's own numbers.
    assert scores[0] == pytest.approx([by_id[number] for number in range(1000)], abs=1e-6)
    gevent.get_hub().destroy(destroy_loop=True)  # Triton's client starts gevent's loop, and does not close it


EXAMPLE = PROJECT / "docs" / "examples" / "cat.jpg"
LABEL = "Egyptian cat"
PART = 0.25
"""The share of the image that is hidden: its hottest part, then its coldest part."""


def score(http: httpx.Client, pixels: np.ndarray) -> float:
    files = {"files": ("a.png", encode(pixels, ".png"))}
    answer = http.post("/predict", params={"labels": LABEL, "threshold": 0}, files=files)
    (prediction,) = answer.json()["results"][0]["predictions"]
    return prediction["score"]


def test_hidden_hot_part_of_an_explanation_costs_score_and_a_cold_one_none(real_client: httpx.Client):
    files = {"files": ("cat.jpg", EXAMPLE.read_bytes())}
    headers = {"Accept": "application/x-ndjson"}
    with real_client.stream(
        "POST", "/explain", params={"masks": 120}, files=files, headers=headers, timeout=300
    ) as response:
        *lines, last = map(json.loads, response.iter_lines())
    found = last["explanation"]
    assert (found["label"], found["class_id"]) == (LABEL, 285)
    done = [line["progress"]["done"] for line in lines]
    assert done == sorted(done)
    assert {line["progress"]["total"] for line in lines} <= {found["masks"] + 1}
    pixels = np.asarray(Image.open(EXAMPLE).convert("RGB"))
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
