"""Several models and versions behind one gateway: requested, split, switched and unloaded under load."""

import base64
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
import pytest
from torch import nn

from gateway_local.runtime.base import TritonRuntime
from gateway_local.server import EmbeddedTriton
from gateway_plugins.keys.key_file import add_key
from tests.commands import gateway
from tests.gateway_models.networks.builders import add_head
from tests.load import Load
from tests.photos import photo
from tests.processes import Gateway, running_gateway, wait_for
from tests.tritons import running_triton, stub_processes

CAT = photo("cat")


@dataclass
class Served:
    """A repository of small models, and the Triton that serves it."""

    repository: Path
    triton: EmbeddedTriton


@pytest.fixture(scope="module")
def served(runtime: TritonRuntime, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    repository = tmp_path_factory.mktemp("served") / "models"
    add_head(repository, "flowers")
    add_head(repository, "flowers", seed=1, version=2, preprocessing=None)
    add_head(repository, "signs", last=nn.Sigmoid(), multi_label=True)
    with running_triton(runtime, repository) as triton:
        yield Served(repository, triton)


@pytest.fixture(scope="module")
def admin(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A file of an admin's key, and the key."""
    path = tmp_path_factory.mktemp("keys") / "admins"
    return path, add_key(path, "ops")


@pytest.fixture(scope="module")
def start(served: Served, admin: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("gateway")

    @contextmanager
    def start(name: str, **settings: object) -> Iterator[Gateway]:
        settings = {"triton_url": served.triton.url, "model": "flowers", "admin_keys_file": admin[0], **settings}
        with running_gateway(folder / name, **settings) as running:
            yield running

    return start


@pytest.fixture(scope="module")
def http(start, admin: tuple[Path, str]) -> Iterator[httpx.Client]:
    with start("plain") as running, running.client(headers={"X-API-Key": admin[1]}) as client:
        yield client


def ask(http: httpx.Client, image: bytes = CAT, headers: dict[str, str] | None = None, **params: object) -> dict:
    answer = http.post("/predict", params=params, files={"f": ("cat.jpg", image)}, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


def scores(answer: dict) -> dict[str, float]:
    return {each["label"]: each["score"] for each in answer["results"][0]["predictions"]}


def test_models_are_listed_with_their_versions(http):
    listed = http.get("/models").json()
    assert listed["default"] == "flowers"
    models = {model["name"]: model for model in listed["models"]}
    flowers, signs = models["flowers"], models["signs"]
    assert (flowers["version"], flowers["versions"]) == ("1", ["1", "2"])
    assert (signs["version"], signs["versions"]) == ("1", ["1"])
    assert (flowers["multi_label"], signs["multi_label"]) == (False, True)
    assert (flowers["precision"], flowers["input_height"], flowers["input_width"]) == ("fp32", 32, 32)
    assert flowers["labels"] == [f"class {number}" for number in range(5)]
    assert http.get("/models/flowers").json() == flowers
    assert http.get("/models/flowers.v2").status_code == 404


def test_each_version_answers_requests_for_it(http):
    one, two = ask(http, version=1), ask(http, version=2)
    assert one["model"] == {"name": "flowers", "version": "1"}
    assert two["model"] == {"name": "flowers", "version": "2"}
    assert scores(one) == scores(ask(http)) != scores(two)
    assert ask(http, model="flowers", version=1) == one
    missing = http.post("/predict", params={"version": 3}, files={"f": CAT})
    assert (missing.status_code, missing.json()["code"]) == (404, "model_not_found")


def test_clients_of_triton_name_versions_and_get_their_classes(http):
    tensor = {"name": "IMAGE", "shape": [1], "datatype": "BYTES", "data": [base64.b64encode(CAT).decode()]}
    body = {"inputs": [tensor], "outputs": [{"name": "PREDICTION", "parameters": {"classification": 5}}]}
    for version in ("1", "2"):
        answer = http.post(f"/v2/models/flowers/versions/{version}/infer", json=body).json()
        assert (answer["model_name"], answer["model_version"]) == ("flowers", version)
        cells = [cell.split(":", 2) for cell in answer["outputs"][0]["data"]]
        assert {label: float(score) for score, _, label in cells} == pytest.approx(scores(ask(http, version=version)))
    assert http.get("/v2/models/flowers").json()["versions"] == ["1", "2"]
    assert http.post("/v2/models/flowers/versions/3/infer", json=body).status_code == 404


def test_multi_label_model_returns_every_label_above_the_threshold(http):
    every = scores(ask(http, model="signs", threshold=0))
    assert len(every) == 5
    likely = {label: score for label, score in every.items() if score >= 0.5}
    assert 0 < len(likely) < 5, every
    assert sum(every.values()) != pytest.approx(1, abs=0.01)
    assert scores(ask(http, model="signs")) == likely
    assert len(scores(ask(http, model="signs", top_k=4))) == 4
    worst = min(every, key=every.get)
    assert scores(ask(http, model="signs", labels=worst)) == {worst: every[worst]}


def load_on(http: httpx.Client, model: str) -> Load:
    """Four clients, whose outcomes are their status and version."""

    def outcome(answer: httpx.Response) -> tuple[int, str]:
        return answer.status_code, answer.json()["model"]["version"] if answer.status_code == 200 else answer.text

    return Load(str(http.base_url), clients=4, model=model, outcome_of=outcome)


def test_version_is_added_switched_and_rolled_back_under_load(http, served):
    add_head(served.repository, "fruits")
    options = ("--triton", served.triton.url, "--model-repository", served.repository)
    use = partial(gateway, "model", "versions", "fruits", *options, "--use")
    assert http.post("/models/fruits/load").json()["versions"] == ["1"]
    with load_on(http, "fruits") as load:
        wait_for(lambda: load.outcomes()[200, "1"] > 20)
        add_head(served.repository, "fruits", seed=1, version=2, preprocessing=None)
        loaded = http.post("/models/fruits/load")
        assert (loaded.status_code, loaded.json()["versions"], loaded.json()["version"]) == (200, ["1", "2"], "1")
        before = load.outcomes()[200, "1"]
        wait_for(lambda: load.outcomes()[200, "1"] > before + 20)
        one, two = (ask(http, model="fruits", version=version) for version in (1, 2))
        assert (one["model"]["version"], two["model"]["version"]) == ("1", "2")
        assert scores(ask(http, model="fruits")) == scores(one) != scores(two)
        use("2")
        wait_for(lambda: load.outcomes()[200, "2"] > 20)
        assert scores(ask(http, model="fruits")) == scores(two)
        assert scores(ask(http, model="fruits", version=1)) == scores(one)
        before = load.outcomes()[200, "1"]
        use("1")
        wait_for(lambda: load.outcomes()[200, "1"] > before + 20)
        assert scores(ask(http, model="fruits")) == scores(one)
    assert set(load.outcomes()) == {(200, "1"), (200, "2")}


def test_unloading_a_model_keeps_the_others(http, served):
    add_head(served.repository, "birds")
    assert http.post("/models/birds/load").status_code == 200
    assert ask(http, model="birds")["model"]["name"] == "birds"
    assert http.post("/models/birds/unload").status_code == 204
    gone = http.post("/predict", params={"model": "birds"}, files={"f": CAT})
    assert (gone.status_code, gone.json()["code"]) in {(404, "model_not_found"), (503, "model_unavailable")}
    assert "birds" not in [model["name"] for model in http.get("/models").json()["models"]]
    assert ask(http)["model"]["name"] == "flowers"
    # Its steps' processes are gone as well, and it comes back as it was.
    assert http.post("/models/birds/load").json()["versions"] == ["1"]
    assert ask(http, model="birds")["model"]["name"] == "birds"


def test_failed_load_reports_the_reason(http, served):
    for act in ("load", "unload"):
        answer = http.post(f"/models/nothing/{act}")
        assert (answer.status_code, answer.json()["code"]) == (404, "model_not_found")
    add_head(served.repository, "broken")
    (served.repository / "broken_classifier" / "1" / "model.onnx").write_bytes(b"no ONNX")
    answer = http.post("/models/broken/load")
    assert (answer.status_code, answer.json()["code"]) == (502, "load_failed")
    assert "broken_classifier" in answer.json()["detail"]
    assert "is not an ONNX model that ONNX Runtime runs" in answer.json()["detail"]
    assert "\n" not in answer.json()["detail"]


def test_death_of_a_shadow_version_costs_no_client_a_result(start, served):
    settings = {"model_shadow": "flowers=2:100", "ready_interval_seconds": 0.5}
    with start("shadow", **settings) as running, running.client() as http:

        def shadowed() -> Counter[str]:
            """Images for the shadow, by outcome."""
            sample = r'^gateway_shadow_images_total\{model="(.*?)",outcome="(.*?)",version="(.*?)"\} (\S+)$'
            found = re.findall(sample, http.get("/metrics").text, re.MULTILINE)
            assert {(model, version) for model, _, version, _ in found} <= {("flowers", "2")}
            return Counter({outcome: int(float(count)) for _, outcome, _, count in found})

        def compared() -> int:
            return shadowed()["same"] + shadowed()["different"]

        with load_on(http, "flowers") as load:
            wait_for(lambda: compared() > 10)
            stubs = stub_processes(served.triton, "flowers_classifier/2")
            assert stubs
            for stub in stubs:
                stub.kill()
            # The shadow version fails and is reloaded, beside the version that answers.
            wait_for(lambda: shadowed().keys() - {"same", "different", "skipped"})
            before = compared()
            wait_for(lambda: compared() > before + 10, timeout_seconds=120)
        assert set(load.outcomes()) == {(200, "1")}
        assert running.log.read_text().count("shadow_fails") >= 1
        assert scores(ask(http)) != scores(ask(http, version=2))
