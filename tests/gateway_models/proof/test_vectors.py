"""Vectors of added networks, on one real Triton: each is the eager network's, and /predict is unchanged."""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from gateway_local.server import EmbeddedTriton
from gateway_models.blocking_triton import BlockingTriton
from gateway_models.networks.add import add
from gateway_models.repository.entry import read_entry
from gateway_models.repository.preprocessing import reference_transforms
from gateway_models.repository.preprocessing_sources import from_weights
from gateway_models.repository.spec import Serving
from tests.commands import gateway
from tests.gateway_models.networks.builders import Head, save_onnx, seeded, spec_of
from tests.gateway_models.proof.serving import gateway_of, results
from tests.photos import photo, unlike_any
from tests.processes import wait_for
from tests.services import Client

pytestmark = pytest.mark.long

EAGER, GRAPH = "eager", "graph"
ONE_EACH = Serving(instances=1, preprocessor_instances=1)
WEIGHTS = "MobileNet_V3_Small_Weights.IMAGENET1K_V1"
COSINE = 0.99999


@pytest.fixture(scope="module")
def networks() -> dict[str, nn.Module]:
    return {EAGER: seeded("mobilenet_v3_small"), GRAPH: Head().eval()}


@pytest.fixture(scope="module")
def repository(networks, tmp_path_factory) -> Path:
    """Two models with vectors, cut out of an eager network and out of an ONNX graph."""
    folder = tmp_path_factory.mktemp("vectors")
    torch.save(networks[EAGER].state_dict(), folder / "eager.pth")
    eager = {
        "weights": str(folder / "eager.pth"),
        "classes": 1000,
        "preprocessing": from_weights(WEIGHTS),
        "serving": ONE_EACH,
    }
    graph = save_onnx(networks[GRAPH], folder / "graph.onnx")
    for name, source, changes in (
        (EAGER, "torchvision:mobilenet_v3_small", eager),
        (GRAPH, graph, {"serving": ONE_EACH}),
    ):
        add(spec_of(source, folder, name=name, features=True, **changes), folder / "models", print)
    return folder / "models"


@pytest.fixture(scope="module")
def client(server) -> Iterator[Client]:
    with gateway_of(server, GRAPH) as client:
        yield client


def inner_of(networks: dict[str, nn.Module], name: str, images: torch.Tensor) -> np.ndarray:
    """The input of an eager network's last linear layer."""
    layer: Any = networks[name].classifier[-1] if name == EAGER else networks[name].scores
    seen: list[torch.Tensor] = []
    handle = layer.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    with handle, torch.inference_mode():
        networks[name](images)
    return seen[0].numpy()


def cosine(one: np.ndarray, other: np.ndarray) -> float:
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


@pytest.mark.parametrize("name", [EAGER, GRAPH])
def test_served_embeddings_equal_the_eager_networks(name, client, repository, networks, photos):
    files = sorted(photos.glob("*.jpg"))
    transforms = reference_transforms(read_entry(repository, name).spec.prepared)
    images = [transforms(Image.open(path).convert("RGB")) for path in files]
    expected = [inner_of(networks, name, image[None])[0] for image in images]
    embedded = results(client, "/embed", *(path.read_bytes() for path in files), model=name)
    for result, wanted in zip(embedded, expected, strict=True):
        vector = np.array(result["embedding"], np.float32)
        assert vector.shape == wanted.shape
        assert cosine(vector, wanted) > COSINE
        assert np.abs(vector - wanted).max() < 1e-3 * max(1, np.abs(wanted).max())


def test_parity_compares_embeddings_with_the_original(server, repository, photos):
    options = ("--triton", server.url, "--model-repository", repository)
    output = gateway("model", "verify", EAGER, photos, *options).output
    assert "embeddings      1024 numbers, cosine 1.0000000 at least" in output


def hits(name: str, server: EmbeddedTriton) -> int:
    """How many answers of an ensemble came from the cache."""
    with BlockingTriton(server.url) as triton:
        (statistics,) = triton._client.get_inference_statistics(name).model_stats
    return statistics.inference_stats.cache_hit.count


@pytest.mark.parametrize("first", ["/predict", "/embed"])
@pytest.mark.parametrize("name", [EAGER, GRAPH])
def test_cached_image_is_answered_for_either_request(first, name, client, server):
    picture = unlike_any(photo("cat"))
    paths = [first, *({"/predict", "/embed"} - {first})]
    answers = {path: results(client, path, picture, model=name, top_k=2) for path in paths}
    before = hits(name, server)
    for path in paths:
        answers[path] += results(client, path, picture, model=name, top_k=2)
    wait_for(lambda: hits(name, server) == before + 2)  # Triton counts after it has answered
    for once, again in answers.values():
        assert once == again
    # Labels and scores are the same by both ways, and the vector does not come with /predict.
    assert answers["/predict"][0]["predictions"] == answers["/embed"][0]["predictions"]
    assert "embedding" not in answers["/predict"][0]


def test_open_inference_protocol_returns_embeddings(client):
    """`tests/gateway/api/test_v2.py` requests one output alone."""
    metadata = client.get(f"/v2/models/{GRAPH}").json()
    assert {"name": "FEATURES", "datatype": "FP32", "shape": [-1, 16]} in metadata["outputs"]
    image = {"name": "IMAGE", "datatype": "BYTES", "shape": [1], "data": [base64.b64encode(photo("cat")).decode()]}
    answer = client.post(f"/v2/models/{GRAPH}/infer", json={"inputs": [image]}).json()
    everything = {each["name"]: each for each in answer["outputs"]}
    assert everything.keys() == {"PREDICTION", "STATUS", "FEATURES"}
    assert everything["FEATURES"]["shape"] == [1, 16]
    (one,) = results(client, "/embed", photo("cat"), model=GRAPH)
    assert np.allclose(everything["FEATURES"]["data"], one["embedding"], atol=1e-6)
