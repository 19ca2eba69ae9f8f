"""Triton's response cache answers equal images, and no others."""

from collections.abc import Iterator

import cv2
import numpy as np
import pytest

from gateway.triton.contract import ENSEMBLE_MODEL, RAW_IMAGE
from tests.asking import encode
from tests.collisions import colliding_jpegs, start
from tests.photos import photo
from tests.processes import Gateway, wait_for
from tests.reliability.conftest import classify

pytestmark = pytest.mark.triton


@pytest.fixture(scope="module")
def pair() -> tuple[bytes, bytes]:
    """Two photographs with one key in the cache of Triton, without the gateway's signature but with its room."""
    cat, coffee = (shrunk(photo(name)) for name in ("cat", "coffee"))
    return colliding_jpegs(cat, coffee, start(ENSEMBLE_MODEL, 1, RAW_IMAGE))


@pytest.fixture(scope="module")
def gateway(triton, start_gateway) -> Iterator[Gateway]:
    """A gateway with a new secret, in two processes."""
    with start_gateway(triton_url=triton.url, workers=2) as running:
        yield running


def shrunk(encoded: bytes) -> bytes:
    pixels = cv2.imdecode(np.frombuffer(encoded, np.uint8), cv2.IMREAD_COLOR_RGB)
    return encode(cv2.resize(pixels, (224, 224)), ".jpg")


def hits(triton_client) -> int:
    (statistics,) = triton_client.get_inference_statistics(ENSEMBLE_MODEL).model_stats
    return statistics.inference_stats.cache_hit.count


def label(gateway, encoded: bytes) -> str:
    (result,) = classify(gateway, encoded).json()["results"]
    return result["predictions"][0]["label"]


def test_triton_alone_confuses_images_with_equal_cache_keys(triton_client, pair):
    # The reason for the signature. If this fails, Triton has fixed its cache.
    from tests.asking import ask_for_labels

    before = hits(triton_client)
    first, second = (ask_for_labels(triton_client, picture, 1) for picture in pair)
    assert first == second
    wait_for(lambda: hits(triton_client) == before + 1)


def test_gateway_separates_colliding_images_and_still_hits(triton_client, gateway, pair):
    cat, coffee = (label(gateway, picture) for picture in pair)
    assert "cat" in cat.lower()
    assert coffee != cat
    before = hits(triton_client)
    assert [label(gateway, picture) for picture in pair] == [cat, coffee]
    wait_for(lambda: hits(triton_client) == before + 2)  # whichever worker was asked


def test_gateways_share_cache_entries_only_with_equal_secrets(triton, triton_client, start_gateway, gateway):
    picture = shrunk(photo("cat")) + b"\xff\xd9"
    settings = {"triton_url": triton.url, "cache_secret": "one secret for all of them"}
    with start_gateway(**settings) as first, start_gateway(**settings) as second:
        label(first, picture)
        before = hits(triton_client)
        label(second, picture)
        wait_for(lambda: hits(triton_client) == before + 1)
    # Of two requests through another secret, the second one hits the entry of the first.
    label(gateway, picture)
    label(gateway, picture)
    wait_for(lambda: hits(triton_client) == before + 2)


def test_direct_requests_to_triton_do_not_spoil_gateway_answers(triton_client, gateway):
    from tritonclient.grpc import InferRequestedOutput

    from gateway.triton.contract import PREDICTION
    from tests.asking import inputs_of

    picture = encode(np.random.default_rng(7).integers(0, 256, (40, 40, 3), np.uint8), ".jpg")
    triton_client.infer(ENSEMBLE_MODEL, inputs_of([picture]), outputs=[InferRequestedOutput(PREDICTION)])
    assert label(gateway, picture)
