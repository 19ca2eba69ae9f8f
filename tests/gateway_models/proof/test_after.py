"""Versions with post-processing on one real Triton: each answer is the step applied to the network's own answer."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from websockets.sync.client import connect

from gateway.triton.contract import SEQUENCE_MODEL
from gateway_models.blocking_triton import BlockingTriton, TritonRefused
from gateway_models.networks.add import add, add_step
from gateway_models.repository.after import read_step
from gateway_models.repository.manage import provide_stateful
from gateway_models.repository.spec import Serving
from tests.commands import gateway
from tests.gateway_models.networks.builders import Head, save_onnx, spec_of
from tests.gateway_models.proof.serving import gateway_of, results
from tests.photos import PHOTOS, photo
from tests.processes import running_gateway
from tests.services import Client

ONE_EACH = Serving(instances=1, preprocessor_instances=1)
GROUPS = """
temperature: 1.5
classes:
  red: [0, 1]
  yellow: class 2
  blue: 3-4
threshold: 0.9
"""
FUNCTION = """
import numpy as np

def longest(scores, embeddings):
    if len(scores) == 5:
        raise ValueError("five at once")
    return np.stack([scores.max(axis=1), np.linalg.norm(embeddings, axis=1)], axis=1)
"""
PLAIN, OWN, CODE = 1, 2, 3
OWN_LABELS = {"red", "yellow", "blue", "other"}


@pytest.fixture(scope="module")
def repository(tmp_path_factory) -> Path:
    """One network with embeddings, in three versions: alone, and with both kinds of steps."""
    folder = tmp_path_factory.mktemp("after")
    spec = spec_of(save_onnx(Head(), folder / "head.onnx"), folder, serving=ONE_EACH, features=True)
    add(spec, folder / "models", print)
    (folder / "two.txt").write_text("a\nb\n")
    for step, text, options in (
        ("groups.yaml", GROUPS, {}),
        ("code.py:longest", FUNCTION, {"labels": folder / "two.txt", "trust": True}),
    ):
        (folder / step.partition(":")[0]).write_text(text)
        add_step(read_step(str(folder / step)), folder / "models", "head", PLAIN, print, **options)
    provide_stateful(SEQUENCE_MODEL, folder / "models")
    return folder / "models"


@pytest.fixture(scope="module")
def client(server) -> Iterator[Client]:
    with gateway_of(server, "head") as client:
        yield client


def predicted(client: Client, version: int, *pictures: bytes) -> list[dict]:
    return results(client, "/predict", *pictures, version=version, top_k=10)


def scores(result: dict) -> dict[str, float]:
    return {each["label"]: each["score"] for each in result["predictions"]}


def test_own_classes_have_scores_that_add_up(client):
    """A bad file between them has its own error, as without a step.

    `test_parity_applies_the_step_to_the_original` compares the scores with the step in this process.
    """
    pictures = [photo(name) for name in PHOTOS]
    pictures.insert(1, b"no image")
    plain, own = (predicted(client, version, *pictures) for version in (PLAIN, OWN))
    assert [each["status"] for each in own] == [each["status"] for each in plain]
    assert own[1]["error"]["code"] == "unsupported_format"
    for found in (scores(each) for each in own if not each["error"]):
        assert found.keys() == OWN_LABELS
        assert sum(found.values()) == pytest.approx(1, abs=1e-5)


def test_failing_function_costs_its_own_request_only(server, repository):
    with BlockingTriton(server.url) as triton:
        with pytest.raises(TritonRefused, match=r"longest of code\.py failed with ValueError; Triton's log has"):
            triton.predict("head.v3", [photo("cat")] * 5)
        found, network = (triton.predict(name, [photo("cat")] * 2) for name in ("head.v3", "head"))
    lengths = np.linalg.norm(network.embeddings, axis=1)
    assert found.values == pytest.approx(np.stack([network.values.max(axis=1), lengths], axis=1), rel=1e-5)


def test_models_show_the_step_of_the_version_in_use(client, server, repository):
    plain = client.get("/models/head").json()
    assert (plain["after"], plain["classes"], plain["runtime"]) == (None, 5, "onnxruntime")
    options = ("--triton", server.url, "--model-repository", repository)
    try:
        gateway("model", "use", "head", OWN, *options)
        with gateway_of(server, "head") as another:
            shown = another.get("/models/head").json()
    finally:
        gateway("model", "use", "head", PLAIN, *options)
    assert shown["labels"] == ["red", "yellow", "blue", "other"]
    assert shown["after"] == "temperature 1.5, 3 own classes, 'other' below 0.9"
    assert shown["steps"] == ["head_preprocessor", "head_classifier", "head.v2_after"]
    # The runtime and the input of the network, not of the step.
    assert {name: shown[name] for name in ("runtime", "input_height", "embedding_size", "tensor")} == {
        name: plain[name] for name in ("runtime", "input_height", "embedding_size", "tensor")
    }


@pytest.mark.parametrize("version", [PLAIN, OWN, pytest.param(CODE, marks=pytest.mark.long)])
def test_parity_applies_the_step_to_the_original(server, repository, photos, version):
    options = ("--version", version, "--triton", server.url, "--model-repository", repository)
    assert "the served answers are the original's" in gateway("model", "verify", "head", photos, *options).output


def test_streams_and_heat_maps_have_the_own_classes(server, tmp_path):
    with running_gateway(tmp_path / "gateway.log", triton_url=server.url, model="head") as service:
        address = f"{service.url.replace('http', 'ws', 1)}/stream?version={OWN}&top_k=10"
        with connect(address, proxy=None, compression=None) as stream:
            for _ in range(2):
                stream.send(photo("cat"))
                answer = json.loads(stream.recv(60))
                for part in (answer, answer["sequence"]):
                    assert {each["label"] for each in part["predictions"]} == OWN_LABELS
        options = {"version": OWN, "masks": 25, "label": "red"}
        explained = httpx.post(f"{service.url}/explain", files={"file": photo("cat")}, params=options, timeout=60)
        assert explained.status_code == 200, explained.text
        assert explained.json()["explanation"]["label"] == "red"
