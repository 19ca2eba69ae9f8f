"""Several models and versions behind one gateway: requested, split, switched and unloaded under load."""

import json
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import httpx
import pytest
from torch import nn

from gateway.plugins.keys.key_file import add_key
from gateway_local.runtime.base import TritonRuntime
from gateway_local.server import EmbeddedTriton
from gateway_models.repository.entry import read_entry
from gateway_models.repository.manage import user
from tests.commands import gateway, refusal
from tests.gateway_models.networks.builders import add_head
from tests.load import Load
from tests.photos import photo
from tests.processes import free_port, wait_for
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
def start(served: Served, admin: tuple[Path, str], start_gateway):
    return partial(start_gateway, triton_url=served.triton.url, model="flowers", admin_keys_file=admin[0])


@pytest.fixture(scope="module")
def http(start, admin: tuple[Path, str]) -> Iterator[httpx.Client]:
    with start() as running, running.client(headers={"X-API-Key": admin[1]}) as client:
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


def load_on(url: str, model: str) -> Load:
    """Clients with a new connection for each request, whose outcomes are their status and version."""

    def outcome(status: int, body: bytes) -> tuple[int, str]:
        return status, json.loads(body)["model"]["version"] if status == 200 else body.decode()

    return Load(url, clients=4, model=model, pause_seconds=0.2, keeps_connections=False, outcome_of=outcome)


def wait_share(load: Load, version: str, share: float) -> None:
    """Wait until a version has this share of the latest 100 requests: within five standard deviations."""

    def is_reached() -> bool:
        latest = [outcome for _, _, outcome in load.answers[-100:]]
        return len(latest) == 100 and abs(latest.count((200, version)) / 100 - share) < (0.25 if share < 1 else 0.001)

    wait_for(is_reached)


def test_what_answers_is_changed_under_load_and_gateways_agree(start, served, admin):
    """A command, or an admin of one gateway, changes it for all; none of the requests fails."""
    add_head(served.repository, "fruits")
    options = ("--triton", served.triton.url, "--model-repository", served.repository)
    use = partial(gateway, "model", "use", "fruits", *options)
    with (
        start(workers=2, model_repository=served.repository) as one,
        start() as two,
        one.client(headers={"X-API-Key": admin[1]}) as http,
        two.client() as other,
    ):
        assert http.post("/models/fruits/load").json()["versions"] == ["1"]
        with load_on(one.url, "fruits") as load, load_on(two.url, "fruits") as other_load:
            add_head(served.repository, "fruits", seed=1, version=2, preprocessing=None)
            use("1=50", "2=50", "--shadow", "2=50")
            shown = other.get("/models/fruits").json()
            assert (shown["shares"], shown["shadow"], shown["by"]) == ({"1": 50, "2": 50}, {"2": 50}, user())
            assert datetime.now(UTC) - datetime.fromisoformat(shown["since"]) < timedelta(minutes=1)
            for each in (load, other_load):
                wait_share(each, "2", 0.5)
            assert one.metric('gateway_version_share_ratio{model="fruits",version="2"}') == 0.5
            changed = http.post("/models/fruits/use", params={"versions": "1=10,2=90", "shadow": "1"}).json()
            assert (changed["shares"], changed["shadow"], changed["by"]) == ({"1": 10, "2": 90}, {"1": 100}, "ops")
            for each in (load, other_load):
                wait_share(each, "2", 0.9)
            message = refusal("model", "remove", "fruits", "--version", "1", *options)
            assert "version 1 of fruits answers requests" in message
            use("2")
            gateway("model", "remove", "fruits", "--version", "1", *options)
            for each in (load, other_load):
                wait_share(each, "2", 1)
        assert other.get("/models/fruits").json()["versions"] == ["2"]
        changes = [(event["shares"], event["by"]) for event in two.events() if event["event"] == "rollout"]
        assert [shares for shares, _ in changes[-3:]] == [{"1": 50, "2": 50}, {"1": 10, "2": 90}, {"2": 100}]
    assert {outcome for outcome, _ in [*load.outcomes(), *other_load.outcomes()]} == {200}


def test_explicit_versions_and_refused_changes(http, served, tmp_path):
    add_head(served.repository, "trees")
    add_head(served.repository, "trees", seed=1, version=2, preprocessing=None)
    http.post("/models/trees/load")
    one, two = (ask(http, model="trees", version=version) for version in (1, 2))
    assert scores(ask(http, model="trees")) == scores(one) != scores(two)
    options = ("--triton", served.triton.url, "--model-repository", served.repository)
    gateway("model", "use", "trees", "2", *options)
    assert scores(ask(http, model="trees")) == scores(two)
    assert scores(ask(http, model="trees", version=1)) == scores(one)
    assert http.post("/models/trees/use?versions=1").status_code == 404  # it does not know the repository
    closed = f"127.0.0.1:{free_port()}"
    failed = refusal("model", "use", "trees", "1", "--triton", closed, "--model-repository", served.repository)
    assert f"the record in {served.repository} is as before" in failed
    assert read_entry(served.repository, "trees").in_use == 2  # as Triton serves it
    shutil.copytree(served.repository, tmp_path / "copy")
    others = ("--triton", served.triton.url, "--model-repository", tmp_path / "copy")
    assert "serves another repository" in refusal("model", "use", "trees", "1", *others)
    assert read_entry(tmp_path / "copy", "trees").in_use == 2
    # A version that was found by its own ensemble is found again when it is the only one.
    gateway("model", "use", "trees", "1", *options)
    assert ask(http, model="trees", version=2)["model"]["version"] == "2"
    gateway("model", "use", "trees", "2", *options)
    gateway("model", "remove", "trees", "--version", "1", *options)
    assert ask(http, model="trees", version=2)["model"]["version"] == "2"


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
    options = ("--triton", served.triton.url, "--model-repository", served.repository)
    gateway("model", "use", "flowers", "1", "--shadow", "2", *options)
    with start(ready_interval_seconds=0.5) as running, running.client() as http:

        def shadowed() -> Counter[str]:
            """Images for the shadow, by outcome."""
            sample = r'^gateway_shadow_images_total\{model="(.*?)",outcome="(.*?)",version="(.*?)"\} (\S+)$'
            found = re.findall(sample, http.get("/metrics").text, re.MULTILINE)
            assert {(model, version) for model, _, version, _ in found} <= {("flowers", "2")}
            return Counter({outcome: int(float(count)) for _, outcome, _, count in found})

        def compared() -> int:
            return shadowed()["same"] + shadowed()["different"]

        with load_on(running.url, "flowers") as load:
            wait_for(lambda: compared() > 10)
            stubs = stub_processes(served.triton, "flowers_classifier/2")
            assert stubs
            for stub in stubs:
                stub.kill()
            # The shadow version fails and is reloaded while the other version answers.
            wait_for(lambda: shadowed().keys() - {"same", "different", "skipped"})
            before = compared()
            wait_for(lambda: compared() > before + 10, timeout_seconds=120)
        assert set(load.outcomes()) == {(200, "1")}
        assert running.log.read_text().count("shadow_fails") >= 1
        assert scores(ask(http)) != scores(ask(http, version=2))
