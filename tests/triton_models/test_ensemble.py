"""The model repository on the real Triton: right answers on real photographs, batching, cache."""

from concurrent.futures import ThreadPoolExecutor

import cv2
import numpy as np
import pytest
from skimage import data
from tritonclient.grpc import InferenceServerClient

from gateway.triton.contract import CLASSIFIER, ENSEMBLE_MODEL, PREPROCESSOR
from tests.asking import ask, ask_for_labels, encode, unseen_image
from tests.photos import PHOTOS, ROOTS
from tests.reference import reference_probabilities

TOLERANCE = 1e-3


def photo(name: str) -> np.ndarray:
    """RGB pixels of a photograph that a package brings."""
    package, path = PHOTOS[name]
    return cv2.imread(str(ROOTS[package] / path), cv2.IMREAD_COLOR_RGB)


@pytest.mark.parametrize(("pixels", "label"), [(data.chelsea(), "Egyptian cat"), (data.coffee(), "espresso")])
def test_classification_extension_returns_the_label(triton_client, pixels, label):
    predictions = ask_for_labels(triton_client, encode(pixels, ".jpg"), top_k=5)
    scores = [score for score, _, _ in predictions]
    assert predictions[0][2] == label
    assert scores[0] > 0.5
    assert scores == sorted(scores, reverse=True)
    assert len({class_id for _, class_id, _ in predictions}) == 5


@pytest.mark.parametrize("extension", [".jpg", ".png", ".webp", ".bmp"])
def test_every_image_agrees_with_the_eager_reference(triton_client, extension):
    encoded = {name: encode(photo(name), extension) for name in PHOTOS}
    alone = {name: ask(triton_client, [image])[0].probabilities for name, image in encoded.items()}
    together = dict(zip(encoded, ask(triton_client, list(encoded.values())), strict=True))
    for name, image in encoded.items():
        reference = reference_probabilities(image)
        for probabilities in (alone[name], together[name].probabilities):
            assert probabilities.argmax() == reference.argmax(), name
            assert np.abs(probabilities - reference).max() <= TOLERANCE, name


def test_same_request_is_answered_from_the_cache(triton_client):
    def hits() -> int:
        (statistics,) = triton_client.get_inference_statistics(ENSEMBLE_MODEL).model_stats
        return statistics.inference_stats.cache_hit.count

    image = unseen_image()
    before = hits()
    first = ask(triton_client, [image])
    assert hits() == before
    second = ask(triton_client, [image])
    assert hits() == before + 1
    assert np.array_equal(first[0].probabilities, second[0].probabilities)


def test_requests_of_different_lengths_share_batches(triton):
    def counts(client: InferenceServerClient) -> dict[str, tuple[int, int]]:
        statistics = {
            model: client.get_inference_statistics(model).model_stats[0] for model in (PREPROCESSOR, CLASSIFIER)
        }
        return {model: (each.inference_count, each.execution_count) for model, each in statistics.items()}

    def ask_for_many(worker: int) -> list[int]:
        with InferenceServerClient(triton.url) as client:
            return [ask(client, [unseen_image(64 + worker, 48)])[0].status for _ in range(20)]

    with InferenceServerClient(triton.url) as client, ThreadPoolExecutor(16) as pool:
        before = counts(client)
        statuses = [status for answers in pool.map(ask_for_many, range(16)) for status in answers]
        after = counts(client)
    assert statuses == [0] * 320
    for model in (PREPROCESSOR, CLASSIFIER):
        inferences, executions = (after[model][i] - before[model][i] for i in range(2))
        assert inferences >= 320  # and the gateways of other tests look after the server
        assert executions < inferences


def test_largest_batch_is_answered_in_order(triton_client):
    images = [encode(np.full((32, 32, 3), level, np.uint8), ".png") for level in range(0, 256, 4)]
    answers = ask(triton_client, images)
    assert len(answers) == 64
    assert all(answer.status == 0 for answer in answers)
    first, last = (ask(triton_client, [images[i]])[0].probabilities for i in (0, -1))
    assert np.allclose(answers[0].probabilities, first, atol=1e-5)
    assert np.allclose(answers[-1].probabilities, last, atol=1e-5)
    assert not np.allclose(first, last, atol=1e-3)
