"""The service's answers are the trained model's: each photograph is held to PIL, torchvision and eager PyTorch."""

from functools import cache

import httpx
import numpy as np
import pytest

from tests.photos import PHOTOS, SAVED_AS, photo
from tests.processes import Gateway
from tests.reference import reference_probabilities

TOLERANCE = 1e-3
FORMS = [(name, image_format) for name in PHOTOS for image_format in SAVED_AS]


@pytest.fixture(params=["auto", "always"])
def either_client(request: pytest.FixtureRequest, gateway: Gateway, decoding_gateway: Gateway):
    """A client of a gateway whose Triton decodes, and of a gateway that decodes itself."""
    with {"auto": gateway, "always": decoding_gateway}[request.param].client() as http:
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


def test_the_cat_is_an_egyptian_cat(client: httpx.Client):
    answer = client.post("/predict", files={"files": ("cat.jpg", photo("cat"))}).json()
    result = answer["results"][0]
    assert answer["model"] == {"name": "ensemble_model", "version": "1"}
    assert (result["width"], result["height"]) == (451, 300)
    assert result["predictions"][0]["label"] == "Egyptian cat"
    assert len(result["predictions"]) == 5


def test_a_raw_body_is_one_image(client: httpx.Client):
    answer = client.post("/predict", content=photo("coffee"), headers={"Content-Type": "image/jpeg"})
    assert answer.json()["results"][0]["predictions"][0]["label"] == "espresso"
