"""Versions of one model fail and recover independently."""

import asyncio

import pytest

from gateway.errors import ModelUnavailable
from gateway.triton.error_table import StubDied
from gateway.triton.health.checker import HealthChecker
from tests.doubles.triton import FakeTriton
from tests.gateway.triton.fleet import MODEL, call_of, checker_of, due, wait_until

VERSIONS = {
    MODEL: ("preprocessor", "net:1"),
    f"{MODEL}.v1": ("preprocessor", "net:1"),
    f"{MODEL}.v2": ("preprocessor", "net:2"),
}


async def probed(checker: HealthChecker) -> None:
    """Probe every model, and reload those that fail."""
    for _ in range(3):
        await checker.probe_all()
        await checker.recover()
        await due(checker)


def ready(checker: HealthChecker) -> set[str]:
    return {model.name for model in checker.health().models if model.ready}


@pytest.fixture
def options() -> dict[str, object]:
    """Arguments of the FakeTriton, which a test may replace by its parameters."""
    return {}


@pytest.fixture
def triton(options) -> FakeTriton:
    return FakeTriton(ensembles=VERSIONS, **options)


@pytest.fixture
async def checker(triton) -> HealthChecker:
    checker = checker_of(triton)
    await probed(checker)
    assert ready(checker) == set(VERSIONS)
    return checker


async def test_dead_version_gets_a_rolling_reload(triton, checker):
    triton.kill("net:2")
    checker.state.suspect(f"{MODEL}.v2", StubDied("net"), float("inf"))
    assert ready(checker) == {MODEL, f"{MODEL}.v1"}
    assert checker.state.ready
    await probed(checker)
    assert ready(checker) == set(VERSIONS)
    assert ("force_reload", "net") in triton.done
    assert not [what for what, _ in triton.done if what == "unload"]


@pytest.mark.parametrize("options", [{"load_seconds": 0.2}])
async def test_other_versions_answer_during_a_rolling_reload(triton, checker):
    triton.kill("net:2")
    task = asyncio.create_task(checker.run())
    await wait_until(lambda: "reloading" in checker.health().healing)
    while "reloading" in checker.health().healing:
        assert checker.state.ready
        assert triton.answer(call_of(b"image"), 1).rows
        await asyncio.sleep(0.005)
    await wait_until(lambda: ready(checker) == set(VERSIONS))
    task.cancel()


@pytest.mark.parametrize("options", [{"recovers_on_reload": False}])
async def test_rolling_reload_is_limited_to_the_failing_step(triton, checker):
    triton.failing.add("net:2")
    task = asyncio.create_task(checker.run())
    await wait_until(lambda: triton.done.count(("force_reload", "net")) == 1)
    await wait_until(lambda: "does not repair" in checker.health().healing)
    assert checker.state.ready
    assert {what for what, _ in triton.done} <= {"force_reload", "load"}
    assert ("force_reload", "preprocessor") not in triton.done
    task.cancel()


async def test_step_shared_by_all_versions_is_unloaded_and_loaded(triton, checker):
    triton.kill("preprocessor")
    checker.state.suspect(f"{MODEL}.v2", StubDied("preprocessor"), float("inf"))
    assert ready(checker) == set()
    await probed(checker)
    assert ready(checker) == set(VERSIONS)
    assert triton.done[:2] == [("unload", "preprocessor"), ("load", "preprocessor")]


async def test_single_reload_recovers_all_dead_versions(triton, checker):
    triton.dead = {"net:1", "net:2"}
    for name in VERSIONS:
        checker.state.suspect(name, StubDied("net"), float("inf"))
    assert ready(checker) == set()
    await probed(checker)
    assert ready(checker) == set(VERSIONS)
    assert triton.reloads("net") == 1
    assert ("force_reload", "net") not in triton.done


@pytest.mark.parametrize("used", [False, True])
async def test_failed_rolling_reload_unloads_only_models_in_use(used, triton, checker):
    triton.kill("net:2")
    triton.refuses_force_reload.add("net")
    task = asyncio.create_task(checker.run())
    await wait_until(lambda: triton.done.count(("force_reload", "net")) >= 1)
    if used:
        checker.state.suspect(f"{MODEL}.v2", ModelUnavailable(), float("inf"))
        await wait_until(lambda: triton.reloads("net") == 1)
        await wait_until(lambda: ready(checker) == set(VERSIONS))
    else:
        await wait_until(lambda: triton.done.count(("force_reload", "net")) >= 2)
        assert triton.reloads("net") == 0
        assert checker.state.ready
    task.cancel()
