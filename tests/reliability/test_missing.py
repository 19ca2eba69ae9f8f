"""A model that a real Triton could not load is reported, answered with 503, and loaded once it can be."""

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest

from gateway_local.runtime.base import TritonRuntime
from gateway_local.server import EmbeddedTriton
from tests.processes import Gateway, wait_for
from tests.reliability.conftest import classify, endpoints, ready
from tests.tritons import running_triton

pytestmark = [pytest.mark.triton, pytest.mark.slow]

FAULTS = {
    "no memory": ({"classifier/1/model.py": "raise MemoryError('no memory')"}, "MemoryError: no memory"),
    "not mounted": ({}, "repository does not have it"),
}
"""The texts of changed files, none of them where a remote storage is not there yet; and Triton's reason."""


@pytest.fixture(scope="module")
def own_triton(
    runtime: TritonRuntime, light_repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EmbeddedTriton]:
    """A Triton whose repository a test may damage, and has to repair."""
    repository = Path(shutil.copytree(light_repository, tmp_path_factory.mktemp("missing") / "models"))
    with running_triton(runtime, repository) as server:
        yield server


@pytest.fixture
def repair(own_triton: EmbeddedTriton, light_repository: Path) -> Iterator[Callable[[], object]]:
    """A function that restores the repository, which is also called after the test."""
    restore = partial(shutil.copytree, light_repository, own_triton.model_repository, dirs_exist_ok=True)
    yield restore
    restore()


def start_damaged(triton: EmbeddedTriton, texts: dict[str, str]) -> None:
    """Kill the server and start it again with a damaged repository."""
    triton.stop(grace_seconds=0)
    for path, text in texts.items():
        (triton.model_repository / path).write_text(text)
    for model in () if texts else triton.model_repository.iterdir():
        shutil.rmtree(model)
    triton.start()
    wait_for(triton.answers)


def missing(gateway: Gateway) -> dict[str, str]:
    (endpoint,) = endpoints(gateway)
    return {each["name"]: each["reason"] for each in endpoint["models_not_ready"]}


@pytest.mark.parametrize(("texts", "reason"), FAULTS.values(), ids=FAULTS)
def test_model_that_was_never_loaded_is_loaded_once_it_can_be(own_triton, repair, start_gateway, texts, reason):
    start_damaged(own_triton, texts)
    settings = {"triton_url": own_triton.url, "load_models": "*", "ready_interval_seconds": 0.5}
    with start_gateway(wait_ready=False, **settings) as gateway:
        wait_for(lambda: any(reason in each for each in missing(gateway).values()))
        assert not ready(gateway)
        problem = classify(gateway)
        assert (problem.status_code, problem.json()["code"]) == (503, "model_unavailable")
        assert int(problem.headers["Retry-After"]) > 0
        assert reason not in problem.text
        models = httpx.get(f"{gateway.url}/models", timeout=60).json()["models"]
        assert [(model["name"], model["ready"]) for model in models] == [("ensemble_model", False)]
        wait_for(lambda: "gateway_model_missing{" in httpx.get(f"{gateway.url}/metrics", timeout=60).text)
        wait_for(lambda: "model_missing" in gateway.log.read_text())
        repair()
        wait_for(lambda: ready(gateway))
        assert classify(gateway).status_code == 200
        wait_for(lambda: not missing(gateway))
