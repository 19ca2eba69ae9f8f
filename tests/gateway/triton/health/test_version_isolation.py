"""Versions of one model fail and recover independently."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from gateway.errors import ModelUnavailable
from gateway.triton.error_table import StubDied
from gateway.triton.health.checker import HealthChecker
from tests.gateway.triton.fake_endpoint import FakeTriton
from tests.gateway.triton.fleet import MODEL, call_of, checker_of, run, wait_until

VERSIONS = {
    MODEL: ("preprocessor", "net:1"),
    f"{MODEL}.v1": ("preprocessor", "net:1"),
    f"{MODEL}.v2": ("preprocessor", "net:2"),
}


async def tried(checker: HealthChecker) -> None:
    """Every model is tried, and what is broken mended if that can be done now."""
    for _ in range(3):
        await checker.probe_all()
        await checker.recover()
        await asyncio.sleep(0.02)


def ready(checker: HealthChecker) -> set[str]:
    return {model.name for model in checker.health().models if model.ready}


def with_versions(test: Callable[[FakeTriton, HealthChecker], Awaitable[None]], **options: object) -> None:
    async def scenario() -> None:
        triton = FakeTriton(ensembles=VERSIONS, **options)
        checker = checker_of(triton)
        await tried(checker)
        assert ready(checker) == set(VERSIONS)
        await test(triton, checker)

    run(scenario())


def test_dead_version_gets_a_rolling_reload():
    async def test(triton: FakeTriton, checker: HealthChecker) -> None:
        triton.kill("net:2")
        checker.state.suspect(f"{MODEL}.v2", StubDied("net"), float("inf"))
        assert ready(checker) == {MODEL, f"{MODEL}.v1"}
        assert checker.state.ready
        await tried(checker)
        assert ready(checker) == set(VERSIONS)
        assert ("force_reload", "net") in triton.done
        assert not [what for what, _ in triton.done if what == "unload"]

    with_versions(test)


def test_other_versions_answer_during_a_rolling_reload():
    async def test(triton: FakeTriton, checker: HealthChecker) -> None:
        triton.kill("net:2")
        task = asyncio.create_task(checker.run())
        await wait_until(lambda: "reloading" in checker.health().healing)
        while "reloading" in checker.health().healing:
            assert checker.state.ready
            assert triton.answer(call_of(b"image"), 1).rows
            await asyncio.sleep(0.005)
        await wait_until(lambda: ready(checker) == set(VERSIONS))
        task.cancel()

    with_versions(test, load_seconds=0.2)


def test_rolling_reload_is_limited_to_the_failing_step():
    async def test(triton: FakeTriton, checker: HealthChecker) -> None:
        triton.failing.add("net:2")
        task = asyncio.create_task(checker.run())
        await wait_until(lambda: triton.done.count(("force_reload", "net")) == 1)
        await wait_until(lambda: "does not repair" in checker.health().healing)
        assert checker.state.ready
        assert {what for what, _ in triton.done} <= {"force_reload", "load"}
        assert ("force_reload", "preprocessor") not in triton.done
        task.cancel()

    with_versions(test, recovers_on_reload=False)


def test_step_shared_by_all_versions_is_unloaded_and_loaded():
    async def test(triton: FakeTriton, checker: HealthChecker) -> None:
        triton.kill("preprocessor")
        checker.state.suspect(f"{MODEL}.v2", StubDied("preprocessor"), float("inf"))
        assert ready(checker) == set()
        await tried(checker)
        assert ready(checker) == set(VERSIONS)
        assert triton.done[:2] == [("unload", "preprocessor"), ("load", "preprocessor")]

    with_versions(test)


def test_single_reload_recovers_all_dead_versions():
    async def test(triton: FakeTriton, checker: HealthChecker) -> None:
        triton.dead = {"net:1", "net:2"}
        for name in VERSIONS:
            checker.state.suspect(name, StubDied("net"), float("inf"))
        assert ready(checker) == set()
        await tried(checker)
        assert ready(checker) == set(VERSIONS)
        assert triton.reloads("net") == 1
        assert ("force_reload", "net") not in triton.done

    with_versions(test)


@pytest.mark.parametrize("asked", [False, True])
def test_failed_rolling_reload_unloads_only_models_in_use(asked):
    async def test(triton: FakeTriton, checker: HealthChecker) -> None:
        triton.kill("net:2")
        triton.refuses_force_reload.add("net")
        task = asyncio.create_task(checker.run())
        await wait_until(lambda: triton.done.count(("force_reload", "net")) >= 1)
        if asked:
            checker.state.suspect(f"{MODEL}.v2", ModelUnavailable(), float("inf"))
            await wait_until(lambda: triton.reloads("net") == 1)
            await wait_until(lambda: ready(checker) == set(VERSIONS))
        else:
            await wait_until(lambda: triton.done.count(("force_reload", "net")) >= 2)
            assert triton.reloads("net") == 0
            assert checker.state.ready
        task.cancel()

    with_versions(test)
