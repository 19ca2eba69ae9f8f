"""Several models and versions behind one gateway: requested, split, switched and unloaded under load."""

import base64
import itertools
import re
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import httpx
import pytest
from torch import nn

from gateway.plugins.keys.key_file import add_key
from gateway.values.rollout import FOLLOW_SECONDS
from gateway_local.runtime.base import TritonRuntime
from gateway_local.server import EmbeddedTriton
from gateway_models.repository.entry import read_entry
from gateway_models.repository.manage import user
from tests.commands import gateway, refusal
from tests.gateway_models.networks.builders import add_head
from tests.load import Load
from tests.photos import photo, unlike_any
from tests.processes import Gateway, free_port, running_gateway, wait_for
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


class RawLoad:
    """40 requests a second for a model, each on a connection of its own, to each gateway in turn."""

    def __init__(self, gateways: Sequence[Gateway], model: str) -> None:
        self._gateways, self._model = gateways, model
        self.answers: list[tuple[float, int, str, str]] = []
        """When each was sent, and its gateway, status and version."""

    def __enter__(self) -> "RawLoad":
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(number,), daemon=True) for number in range(8)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)

    def _run(self, thread: int) -> None:
        for number in itertools.count(thread):
            sent_at, which = time.monotonic(), number % len(self._gateways)
            image = unlike_any(CAT)
            head = f"POST /predict?model={self._model} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
            head += f"Content-Type: image/jpeg\r\nContent-Length: {len(image)}\r\n\r\n"
            try:
                with self._gateways[which].connect() as client:
                    client.sendall(head.encode() + image)
                    answer = b"".join(iter(lambda: client.recv(65_536), b"")).decode()
            except OSError as exc:
                answer = f"HTTP/1.1 {exc}"
            version = re.search(r'"version":"(\d+)"', answer)
            self.answers.append((sent_at, which, answer[9:12], version[1] if version else answer))
            if self._stop.wait(max(0.0, sent_at + 0.2 - time.monotonic())):
                return

    def shares(self, seconds: float = 5.0) -> list[dict[str, float]]:
        """The share of each version, by gateway, in the next seconds, once every gateway should have followed."""
        time.sleep(FOLLOW_SECONDS)
        since = time.monotonic()
        time.sleep(seconds)
        found = []
        for number in range(len(self._gateways)):
            versions = Counter(version for at, which, _, version in self.answers if at > since and which == number)
            found.append({version: count / versions.total() for version, count in versions.items()})
        return found


def test_what_answers_is_changed_under_load_and_gateways_agree(start, served, admin):
    """A command, or an admin of one gateway, changes it for all; none of the requests fails."""
    add_head(served.repository, "fruits")
    options = ("--triton", served.triton.url, "--model-repository", served.repository)
    use = partial(gateway, "model", "use", "fruits", *options)
    about = 0.15  # five standard deviations of a share, of 100 requests
    with (
        start("one", workers=2, model_repository=served.repository) as one,
        start("two") as two,
        one.client(headers={"X-API-Key": admin[1]}) as http,
        two.client() as other,
    ):
        assert http.post("/models/fruits/load").json()["versions"] == ["1"]
        with RawLoad((one, two), "fruits") as load:
            add_head(served.repository, "fruits", seed=1, version=2, preprocessing=None)
            use("1=50", "2=50", "--shadow", "2=50")
            shown = other.get("/models/fruits").json()
            assert (shown["shares"], shown["shadow"], shown["by"]) == ({"1": 50, "2": 50}, {"2": 50}, user())
            assert datetime.now(UTC) - datetime.fromisoformat(shown["since"]) < timedelta(minutes=1)
            for found in load.shares():
                assert found == {"1": pytest.approx(0.5, abs=about), "2": pytest.approx(0.5, abs=about)}
            assert one.metric('gateway_version_share_ratio{model="fruits",version="2"}') == 0.5
            changed = http.post("/models/fruits/use", params={"versions": "1=10,2=90", "shadow": "1"}).json()
            assert (changed["shares"], changed["shadow"], changed["by"]) == ({"1": 10, "2": 90}, {"1": 100}, "ops")
            for found in load.shares():
                assert found["2"] == pytest.approx(0.9, abs=about)
            message = refusal("model", "remove", "fruits", "--version", "1", *options)
            assert "version 1 of fruits answers requests" in message
            use("2")
            gateway("model", "remove", "fruits", "--version", "1", *options)
            assert load.shares(1) == [{"2": 1.0}] * 2
        assert other.get("/models/fruits").json()["versions"] == ["2"]
        changes = [(event["shares"], event["by"]) for event in two.events() if event["event"] == "rollout"]
        assert [shares for shares, _ in changes[-3:]] == [{"1": 50, "2": 50}, {"1": 10, "2": 90}, {"2": 100}]
    assert {status for _, _, status, _ in load.answers} == {"200"}


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
    refusal("model", "use", "trees", "1", "--triton", closed, "--model-repository", served.repository)
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
    with start("shadow", ready_interval_seconds=0.5) as running, running.client() as http:

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
