"""What Triton itself says of the work that the gateway gives it."""

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from tritonclient.grpc import InferenceServerClient

from gateway.triton.contract import CLASSIFIER, ENSEMBLE_MODEL, PREPROCESSOR
from tests.photos import photo, unlike_any
from tests.processes import Gateway


def statistics(client: InferenceServerClient, model: str):
    return client.get_inference_statistics(model).model_stats[0]


@pytest.mark.parametrize("model", [PREPROCESSOR, CLASSIFIER])
def test_single_images_of_many_clients_run_as_batches(gateway: Gateway, triton_client, model: str):
    before = statistics(triton_client, model)
    with gateway.client() as http, ThreadPoolExecutor(32) as clients:

        def ask(_: int) -> int:
            return http.post("/predict", files={"f": ("c.jpg", unlike_any(photo("cat")))}).status_code

        assert set(clients.map(ask, range(200))) == {200}
    after = statistics(triton_client, model)
    assert after.inference_count - before.inference_count >= 200
    assert after.execution_count - before.execution_count < after.inference_count - before.inference_count


def test_the_same_image_again_is_answered_from_the_cache(client: httpx.Client, triton_client):
    image = unlike_any(photo("cat"))
    before = statistics(triton_client, ENSEMBLE_MODEL).inference_stats.cache_hit.count
    answers = [client.post("/predict", files={"files": ("c.jpg", image)}).json() for _ in range(3)]
    assert answers[0] == answers[1] == answers[2]
    assert statistics(triton_client, ENSEMBLE_MODEL).inference_stats.cache_hit.count - before == 2
