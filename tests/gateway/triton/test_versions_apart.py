"""Versions of one model share its folder, not their fate: what befalls one leaves the others answering."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from gateway.errors import ModelUnavailable
from gateway.triton.error_table import StubDied
from gateway.triton.fake_endpoint import FakeTriton
from gateway.triton.health.checker import HealthChecker
from tests.gateway.triton.fleet import MODEL, call_of, run, wait_until, watch_of

VERSIONS = {
    MODEL: ("preprocessor", "net:1"),
    f"{MODEL}.v1": ("preprocessor", "net:1"),
    f"{MODEL}.v2": ("preprocessor", "net:2"),
}


async def tried(watch: HealthChecker) -> None:
    """Every model is tried, and what is broken mended if that can be done now."""
    for _ in range(3):
        await watch.try_all()
        await watch.heal()
        await asyncio.sleep(0.02)


def ready(watch: HealthChecker) -> set[str]:
    return {model.name for model in watch.health().models if model.ready}


def with_versions(test: Callable[[FakeTriton, HealthChecker], Awaitable[None]], **options: object) -> None:
    async def scenario() -> None:
        triton = FakeTriton(ensembles=VERSIONS, **options)
        watch = watch_of(triton)
        await tried(watch)
        assert ready(watch) == set(VERSIONS)
        await test(triton, watch)

    run(scenario())


def test_a_version_that_died_leaves_the_others_ready_and_is_renewed_with_nothing_unloaded():
    async def test(triton: FakeTriton, watch: HealthChecker) -> None:
        triton.kill("net:2")
        watch.suspect(f"{MODEL}.v2", StubDied("net"), float("inf"))
        assert ready(watch) == {MODEL, f"{MODEL}.v1"}
        assert watch.ready
        await tried(watch)
        assert ready(watch) == set(VERSIONS)
        assert ("renew", "net") in triton.done
        assert not [what for what, _ in triton.done if what == "unload"]

    with_versions(test)


def test_while_a_version_is_renewed_the_others_answer():
    async def test(triton: FakeTriton, watch: HealthChecker) -> None:
        triton.kill("net:2")
        task = asyncio.create_task(watch.run())
        await wait_until(lambda: "reloading" in watch.health().healing)
        while "reloading" in watch.health().healing:
            assert watch.ready
            assert triton.answer(call_of(b"image")).rows
            await asyncio.sleep(0.005)
        await wait_until(lambda: ready(watch) == set(VERSIONS))
        task.cancel()

    with_versions(test, load_seconds=0.2)


def test_a_version_that_fails_every_request_has_only_its_own_step_renewed():
    async def test(triton: FakeTriton, watch: HealthChecker) -> None:
        triton.failing.add("net:2")
        task = asyncio.create_task(watch.run())
        await wait_until(lambda: triton.done.count(("renew", "net")) == 1)
        await wait_until(lambda: "does not repair" in watch.health().healing)
        assert watch.ready
        assert {what for what, _ in triton.done} <= {"renew", "load"}
        assert ("renew", "preprocessor") not in triton.done
        task.cancel()

    with_versions(test, mended_by_reload=False)


def test_what_all_versions_share_is_unloaded_and_loaded_as_ever():
    async def test(triton: FakeTriton, watch: HealthChecker) -> None:
        triton.kill("preprocessor")
        watch.suspect(f"{MODEL}.v2", StubDied("preprocessor"), float("inf"))
        assert ready(watch) == set()
        await tried(watch)
        assert ready(watch) == set(VERSIONS)
        assert triton.done[:2] == [("unload", "preprocessor"), ("load", "preprocessor")]

    with_versions(test)


def test_where_every_version_died_one_reloading_mends_them_all():
    async def test(triton: FakeTriton, watch: HealthChecker) -> None:
        triton.dead = {"net:1", "net:2"}
        for name in VERSIONS:
            watch.suspect(name, StubDied("net"), float("inf"))
        assert ready(watch) == set()
        await tried(watch)
        assert ready(watch) == set(VERSIONS)
        assert triton.healings("net") == 1
        assert ("renew", "net") not in triton.done

    with_versions(test)


@pytest.mark.parametrize("asked", [False, True])
def test_what_cannot_be_renewed_is_unloaded_only_where_clients_miss_it(asked):
    async def test(triton: FakeTriton, watch: HealthChecker) -> None:
        triton.kill("net:2")
        triton.refuses_to_renew.add("net")
        task = asyncio.create_task(watch.run())
        await wait_until(lambda: triton.done.count(("renew", "net")) >= 1)
        if asked:
            watch.suspect(f"{MODEL}.v2", ModelUnavailable(), float("inf"))
            await wait_until(lambda: triton.healings("net") == 1)
            await wait_until(lambda: ready(watch) == set(VERSIONS))
        else:
            await wait_until(lambda: triton.done.count(("renew", "net")) >= 2)
            assert triton.healings("net") == 0
            assert watch.ready
        task.cancel()

    with_versions(test)
