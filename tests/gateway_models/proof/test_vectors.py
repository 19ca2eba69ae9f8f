"""Vectors of added networks, on one real Triton: each is the eager network's, and /predict stays what it is."""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from typer.testing import CliRunner

from gateway.triton.opening import create_backend
from gateway_cli.main import app
from gateway_local.server import EmbeddedTriton
from gateway_models.blocking_triton import BlockingTriton
from gateway_models.networks.add import add
from gateway_models.repository.entry import read_entry
from gateway_models.repository.preprocessing import reference_transforms
from gateway_models.repository.preprocessing_sources import from_weights
from gateway_models.repository.spec import ModelSpec, Serving
from tests.gateway_models.networks.builders import Head, save_labels, save_onnx, seeded
from tests.gateway_models.repository.entries import SMALL
from tests.photos import photo, unlike_any
from tests.services import Client, client_of
from tests.settings import Settings

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
    graph = str(save_onnx(networks[GRAPH], folder / "graph.onnx"))
    labels = save_labels(folder / "five.txt")
    # Each step with a cache of its own: the requested outputs must not matter there either.
    serving = Serving(instances=1, preprocessor_instances=1, cache_classifier=True)
    for request in (
        ModelSpec(
            source="torchvision:mobilenet_v3_small",
            weights=str(folder / "eager.pth"),
            name=EAGER,
            labels=save_labels(folder / "thousand.txt", 1000),
            preprocessing=from_weights(WEIGHTS),
            serving=serving,
            features="auto",
        ),
        ModelSpec(source=graph, name=GRAPH, labels=labels, preprocessing=SMALL, serving=ONE_EACH, features="auto"),
    ):
        add(request, folder / "models", print)
    return folder / "models"


@pytest.fixture(scope="module")
def server(runtime, repository) -> Iterator[EmbeddedTriton]:
    with EmbeddedTriton(runtime, repository, on_log=print) as server:
        server.wait_ready()
        yield server


@pytest.fixture(scope="module")
def gateway(server) -> Iterator[Client]:
    settings = {"triton_url": server.url, "model": GRAPH}
    with client_of(create_backend(Settings(_env_file=None, **settings)), **settings) as client:
        yield client


def inner_of(networks: dict[str, nn.Module], name: str, images: torch.Tensor) -> np.ndarray:
    """What the last linear layer of an eager network is given."""
    layer: Any = networks[name].classifier[-1] if name == EAGER else networks[name].scores
    seen: list[torch.Tensor] = []
    handle = layer.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    with handle, torch.inference_mode():
        networks[name](images)
    return seen[0].numpy()


def cosine(one: np.ndarray, other: np.ndarray) -> float:
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


def embed(gateway: Client, model: str, *pictures: bytes, **options) -> list[dict]:
    files = [("files", (f"{number}.jpg", picture)) for number, picture in enumerate(pictures)]
    answer = gateway.post("/embed", files=files, params={"model": model, **options})
    assert answer.status_code == 200, answer.text
    return answer.json()["results"]


@pytest.mark.parametrize("name", [EAGER, GRAPH])
def test_served_embeddings_equal_the_eager_networks(name, gateway, repository, networks, photos):
    files = sorted(photos.glob("*.jpg"))
    transforms = reference_transforms(read_entry(repository, name).preprocessing)
    images = [transforms(Image.open(path).convert("RGB")) for path in files]
    expected = [inner_of(networks, name, image[None])[0] for image in images]
    results = embed(gateway, name, *(path.read_bytes() for path in files))
    assert len(results) == len(files)
    for result, wanted in zip(results, expected, strict=True):
        vector = np.array(result["embedding"], np.float32)
        assert vector.shape == wanted.shape
        assert cosine(vector, wanted) > COSINE
        assert np.abs(vector - wanted).max() < 1e-3 * max(1, np.abs(wanted).max())


def test_parity_compares_embeddings_with_the_original(server, repository, photos):
    options = ["--triton", server.url, "--model-repository", str(repository)]
    result = CliRunner().invoke(app, ["model", "parity", EAGER, str(photos), *options])
    assert result.exit_code == 0, result.output
    assert "embeddings       1024 numbers, cosine 1.0000000 at least" in result.output


@pytest.mark.parametrize("first", ["/predict", "/embed"])
@pytest.mark.parametrize("name", [EAGER, GRAPH])
def test_cached_image_is_answered_for_either_request(first, name, gateway, server):
    picture = unlike_any(photo("cat"))
    paths = [first, *({"/predict", "/embed"} - {first})]
    answers: dict[str, list] = {path: [] for path in paths}
    for path in [*paths, *paths]:
        answer = gateway.post(path, files={"f": ("cat.jpg", picture)}, params={"model": name, "top_k": 2})
        assert answer.status_code == 200, answer.text
        answers[path].append(answer.json()["results"][0])
    for once, again in answers.values():
        assert once == again
    # Labels and scores are the same by both ways, and the vector does not come with /predict.
    assert answers["/predict"][0]["predictions"] == answers["/embed"][0]["predictions"]
    assert "embedding" not in answers["/predict"][0]


def test_answers_from_the_cache_are_hits_of_the_ensemble(gateway, server):
    picture = unlike_any(photo("coffee"))
    with BlockingTriton(server.url) as triton:

        def hits() -> int:
            (statistics,) = triton._client.get_inference_statistics(EAGER).model_stats
            return statistics.inference_stats.cache_hit.count

        before = hits()
        first = embed(gateway, EAGER, picture)
        assert embed(gateway, EAGER, picture) == first
        assert hits() == before + 1


def test_bad_file_leaves_the_other_embeddings(gateway):
    cat, broken, camera = embed(gateway, GRAPH, photo("cat"), b"no picture", photo("camera"))
    assert [each["status"] for each in (cat, broken, camera)] == ["ok", "error", "ok"]
    assert broken["embedding"] is None
    assert broken["error"]["code"] == "unsupported_format"
    assert len(cat["embedding"]) == len(camera["embedding"]) == 16


def test_open_inference_protocol_returns_embeddings(gateway):
    metadata = gateway.get(f"/v2/models/{GRAPH}").json()
    assert {"name": "FEATURES", "datatype": "FP32", "shape": [-1, 16]} in metadata["outputs"]
    image = {"name": "IMAGE", "datatype": "BYTES", "shape": [1], "data": [base64.b64encode(photo("cat")).decode()]}

    def ask(**more) -> list[dict]:
        return gateway.post(f"/v2/models/{GRAPH}/infer", json={"inputs": [image], **more}).json()["outputs"]

    everything = {each["name"]: each for each in ask()}
    assert everything.keys() == {"PREDICTION", "STATUS", "FEATURES"}
    assert everything["FEATURES"]["shape"] == [1, 16]
    (one,) = embed(gateway, GRAPH, photo("cat"))
    assert np.allclose(everything["FEATURES"]["data"], one["embedding"], atol=1e-6)
    (alone,) = ask(outputs=[{"name": "FEATURES"}])
    assert alone["data"] == everything["FEATURES"]["data"]
