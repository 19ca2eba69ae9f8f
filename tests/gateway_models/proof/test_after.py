"""Versions with a step after the network on one real Triton: each answer is the step of the network's own answer."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from typer.testing import CliRunner
from websockets.sync.client import connect

from gateway.triton.contract import SEQUENCE_MODEL
from gateway.triton.opening import create_backend
from gateway_cli.main import app
from gateway_local.server import EmbeddedTriton
from gateway_models.blocking_triton import BlockingTriton, TritonRefused
from gateway_models.networks.add import add
from gateway_models.networks.add_step import add_step
from gateway_models.repository.after import read_step
from gateway_models.repository.manage import provide_stateful
from gateway_models.repository.spec import ModelSpec, Serving
from tests.gateway_models.networks.builders import Head, save_labels, save_onnx
from tests.gateway_models.repository.entries import SMALL
from tests.photos import PHOTOS, photo
from tests.processes import running_gateway
from tests.services import Client, client_of
from tests.settings import Settings
from tests.tritons import running_triton

ONE_EACH = Serving(instances=1, preprocessor_instances=1)
GROUPS = """
temperature: 1.5
classes:
  warm:
    red: [0, 1]
    yellow: class 2
  blue: 3-4
threshold: 0.9
"""
STRANGE = "unknown: {label: never seen, embeddings: known.npy}"
FUNCTION = """
import numpy as np

def longest(scores, embeddings):
    if len(scores) == 5:
        raise ValueError("five at once")
    return np.stack([scores.max(axis=1), np.linalg.norm(embeddings, axis=1)], axis=1)
"""
PLAIN, OWN, UNKNOWN, CODE = 1, 2, 3, 4
OWN_LABELS = {"red", "yellow", "blue", "warm", "other"}


@pytest.fixture(scope="module")
def repository(tmp_path_factory) -> Path:
    """One network with embeddings, in four versions: alone, and with three kinds of steps."""
    folder = tmp_path_factory.mktemp("after")
    request = ModelSpec(
        source=str(save_onnx(Head(), folder / "head.onnx")),
        name="head",
        labels=save_labels(folder / "five.txt"),
        preprocessing=SMALL,
        serving=ONE_EACH,
        features="auto",
    )
    entry = add(request, folder / "models", print)
    # Known images are close to one direction: no photograph is.
    known = np.eye(entry.embedding_size)[0] + np.random.default_rng(0).normal(
        scale=1e-3, size=(50, entry.embedding_size)
    )
    np.save(folder / "known.npy", known)
    for name, text in (
        ("groups.yaml", GROUPS),
        ("strange.yaml", STRANGE),
        ("code.py", FUNCTION),
        ("two.txt", "a\nb\n"),
    ):
        (folder / name).write_text(text)
    for step, options in (
        ("groups.yaml", {}),
        ("strange.yaml", {}),
        ("code.py", {"labels": folder / "two.txt", "trust": True}),
    ):
        add_step(read_step(str(folder / step)), folder / "models", "head", PLAIN, print, **options)
    provide_stateful(SEQUENCE_MODEL, folder / "models")
    return folder / "models"


@pytest.fixture(scope="module")
def server(runtime, repository) -> Iterator[EmbeddedTriton]:
    with running_triton(runtime, repository) as server:
        yield server


@pytest.fixture(scope="module")
def gateway(server) -> Iterator[Client]:
    settings = {"triton_url": server.url, "model": "head"}
    with client_of(create_backend(Settings(_env_file=None, **settings)), **settings) as client:
        yield client


def predicted(gateway: Client, version: int, *pictures: bytes, **options) -> list[dict]:
    files = [("files", (f"{number}.jpg", picture)) for number, picture in enumerate(pictures)]
    answer = gateway.post("/predict", files=files, params={"version": version, "top_k": 10, **options})
    assert answer.status_code == 200, answer.text
    return answer.json()["results"]


def scores(result: dict) -> dict[str, float]:
    return {each["label"]: each["score"] for each in result["predictions"]}


def test_own_classes_are_the_networks_calibrated_and_added_up(gateway):
    """A bad file between them has its own error, as without a step."""
    pictures = [photo(name) for name in PHOTOS]
    pictures.insert(1, b"no image")
    plain, own = (predicted(gateway, version, *pictures) for version in (PLAIN, OWN))
    assert [each["status"] for each in own] == [each["status"] for each in plain]
    assert own[1]["error"]["code"] == "unsupported_format"
    for one, other in zip(plain, own, strict=True):
        if one["error"]:
            continue
        network = np.array([scores(one)[f"class {number}"] for number in range(5)]) ** (1 / 1.5)
        network /= network.sum()
        leaves = {"red": network[:2].sum(), "yellow": network[2], "blue": network[3:].sum()}
        found = scores(other)
        assert found.keys() == OWN_LABELS
        assert sum(found.values()) == pytest.approx(1, abs=1e-5)
        best = max(leaves, key=leaves.__getitem__)
        if leaves[best] >= 0.9:
            assert found[best] == pytest.approx(leaves[best], abs=1e-4)
        elif leaves["red"] + leaves["yellow"] >= 0.9:
            assert found["warm"] == pytest.approx(leaves["red"] + leaves["yellow"], abs=1e-4)
        else:
            assert max(found, key=found.__getitem__) == "other"


def test_strange_images_are_unknown(gateway):
    (result,) = predicted(gateway, UNKNOWN, photo("cat"))
    assert result["predictions"][0]["label"] == "never seen"
    assert len(result["predictions"]) == 6


def test_function_gets_scores_and_embeddings(gateway):
    cat = photo("cat")
    (result,) = predicted(gateway, CODE, cat)
    embedding = gateway.post("/embed", files=[("files", ("cat.jpg", cat))], params={"version": CODE}).json()
    vector = embedding["results"][0]["embedding"]
    best = predicted(gateway, PLAIN, cat)[0]["predictions"][0]["score"]
    assert scores(result)["a"] == pytest.approx(best, abs=1e-5)
    assert scores(result)["b"] == pytest.approx(np.linalg.norm(vector), rel=1e-4)


def test_failing_function_costs_its_own_request_only(server, repository):
    with BlockingTriton(server.url) as triton:
        with pytest.raises(TritonRefused, match=r"longest of code\.py failed with ValueError; Triton's log has"):
            triton.predict("head.v4", [photo("cat")] * 5)
        assert triton.predict("head.v4", [photo("cat")] * 2).values.shape == (2, 2)


def test_models_show_the_step_of_the_version_in_use(gateway, server, repository):
    plain = gateway.get("/models/head").json()
    assert (plain["after"], plain["classes"], plain["runtime"]) == (None, 5, "onnxruntime")
    options = ["--triton", server.url, "--model-repository", str(repository)]
    try:
        done = CliRunner().invoke(app, ["model", "versions", "head", "--use", str(OWN), *options])
        assert done.exit_code == 0, done.output
        with client_of(
            create_backend(Settings(_env_file=None, triton_url=server.url, model="head")),
            triton_url=server.url,
            model="head",
        ) as client:
            shown = client.get("/models/head").json()
    finally:
        CliRunner().invoke(app, ["model", "versions", "head", "--use", str(PLAIN), *options])
    assert shown["labels"] == ["red", "yellow", "blue", "warm", "other"]
    assert shown["after"] == "temperature 1.5, 4 own classes, 'other' below 0.9"
    assert shown["steps"] == ["head_preprocessor", "head_classifier", "head.v2_after"]
    # What runs the network, and its input, not those of the step.
    assert {name: shown[name] for name in ("runtime", "input_height", "embedding_size", "tensor")} == {
        name: plain[name] for name in ("runtime", "input_height", "embedding_size", "tensor")
    }


@pytest.mark.parametrize("version", [PLAIN, OWN, UNKNOWN, CODE])
def test_parity_applies_the_step_to_the_original(server, repository, photos, version):
    options = ["--version", str(version), "--triton", server.url, "--model-repository", str(repository)]
    done = CliRunner().invoke(app, ["model", "parity", "head", str(photos), *options])
    assert done.exit_code == 0, done.output
    assert "the served answers are the original's" in done.output


def test_streams_and_heat_maps_have_the_own_classes(server, tmp_path):
    with running_gateway(tmp_path / "gateway.log", triton_url=server.url, model="head") as service:
        address = f"{service.url.replace('http', 'ws', 1)}/stream?version={OWN}&top_k=10"
        with connect(address, proxy=None, compression=None) as stream:
            for _ in range(2):
                stream.send(photo("cat"))
                answer = json.loads(stream.recv(60))
                for part in (answer, answer["sequence"]):
                    assert {each["label"] for each in part["predictions"]} == OWN_LABELS
        options = {"version": OWN, "method": "occlusion", "grid": 4, "label": "warm"}
        explained = httpx.post(f"{service.url}/explain", files={"file": photo("cat")}, params=options, timeout=60)
        assert explained.status_code == 200, explained.text
        assert explained.json()["explanation"]["label"] == "warm"
