"""A model that a real Triton could not load is reported, answered with 503, and loaded once it can be."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from gateway_local.runtime.base import TritonRuntime
from gateway_local.server import EmbeddedTriton
from tests.leaks import lasting
from tests.processes import Gateway, wait_for
from tests.reliability.conftest import classify, endpoints, ready
from tests.tritons import running_triton

pytestmark = [pytest.mark.triton, pytest.mark.slow]

Damage = Callable[[Path], Callable[[], object]]
"""Damages a repository; returns a function that repairs it."""


def moved(path: Path) -> Callable[[], object]:
    away = path.rename(path.with_name(f"{path.name}.away"))
    return lambda: away.rename(path)


def rewritten(path: Path, text: str) -> Callable[[], object]:
    before = path.read_text()
    path.write_text(text)
    return lambda: path.write_text(before)


def no_memory(repository: Path) -> Callable[[], object]:
    return rewritten(repository / "classifier" / "1" / "model.py", "raise MemoryError('no memory')")


def broken_config(repository: Path) -> Callable[[], object]:
    return rewritten(repository / "preprocessor" / "config.pbtxt", "no config {")


def not_mounted(repository: Path) -> Callable[[], object]:
    """Remote storage: the folder is there and empty."""
    repairs = [moved(repository / name) for name in ("classifier", "preprocessor", "ensemble_model", "sequence_model")]
    hidden = [path.rename(repository.parent / path.name) for path in sorted(repository.glob("*.away"))]

    def mount() -> None:
        for path in hidden:
            path.rename(repository / path.name)
        for repair in repairs:
            repair()

    return mount


FAULTS: dict[str, tuple[Damage, str]] = {
    "no memory": (no_memory, "MemoryError: no memory"),
    "broken config": (broken_config, "config.pbtxt cannot be read"),
    "not mounted": (not_mounted, "repository does not have it"),
}


@pytest.fixture(scope="module")
def own_triton(
    runtime: TritonRuntime, light_repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EmbeddedTriton]:
    """A Triton whose repository a test may damage, and has to repair."""
    repository = Path(shutil.copytree(light_repository, tmp_path_factory.mktemp("missing") / "models"))
    with running_triton(runtime, repository) as server:
        yield server


@contextmanager
def started_broken(triton: EmbeddedTriton, damage: Damage) -> Iterator[Callable[[], object]]:
    """Kill the server and start it again with a damaged repository; yield a function that repairs it."""
    triton.stop(grace_seconds=0)
    repair = damage(triton.model_repository)
    try:
        with lasting():  # it is the server of all tests of this module
            triton.start()
        wait_for(triton.answers)
        yield repair
    except BaseException:
        repair()
        raise


def missing(gateway: Gateway) -> dict[str, str]:
    (endpoint,) = endpoints(gateway)
    return {each["name"]: each["reason"] for each in endpoint["models_not_ready"]}


@pytest.mark.parametrize(("damage", "reason"), FAULTS.values(), ids=FAULTS)
def test_model_that_was_never_loaded_is_loaded_once_it_can_be(own_triton, start_gateway, damage: Damage, reason: str):
    with (
        started_broken(own_triton, damage) as repair,
        start_gateway(
            triton_url=own_triton.url, load_models="*", ready_interval_seconds=0.5, wait_ready=False
        ) as gateway,
    ):
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
