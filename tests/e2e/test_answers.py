"""The default model behind the gateway: its results are those of PIL, torchvision and eager PyTorch, in batches."""

from concurrent.futures import ThreadPoolExecutor
from functools import cache

import httpx
import numpy as np
import pytest

from gateway.triton.contract import CLASSIFIER, PREPROCESSOR
from tests.photos import PHOTOS, SAVED_AS, photo, unlike_any
from tests.processes import Gateway
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
    from torchvision.models import (
        EfficientNet_B0_Weights,
    )  # its import takes seconds, too long for the collection of tests

    return EfficientNet_B0_Weights.IMAGENET1K_V1.meta["categories"]


def check(result: dict, encoded: bytes) -> None:
    expected = reference_probabilities(encoded)
    assert result["status"] == "ok", result
    scores = {prediction["class_id"]: prediction["score"] for prediction in result["predictions"]}
    assert result["predictions"][0]["class_id"] == int(expected.argmax())
    assert result["predictions"][0]["label"] == labels()[int(expected.argmax())]
    served = np.array([scores[class_id] for class_id in range(len(expected))])
    assert np.abs(served - expected).max() <= TOLERANCE


@pytest.mark.parametrize(("name", "image_format"), FORMS)
def test_photograph_gets_the_result_of_the_eager_model(either_client: httpx.Client, name: str, image_format: str):
    encoded = photo(name, image_format)
    answer = either_client.post("/predict", params={"top_k": 1000}, files={"files": (name, encoded)})
    assert answer.status_code == 200, answer.text
    check(answer.json()["results"][0], encoded)


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
    for model, (inferences, executions) in counts().items():
        assert inferences - before[model][0] >= 100
        assert executions - before[model][1] < inferences - before[model][0]
