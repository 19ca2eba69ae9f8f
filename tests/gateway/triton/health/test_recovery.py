"""Failing models are reloaded, by one gateway, and missing ones loaded, at growing intervals."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import partial

import pytest
from prometheus_client import REGISTRY

from gateway.metrics import HEALINGS
from gateway.triton.client import StubDied
from gateway.triton.health import recovery
from gateway.triton.health.recovery import FIRST_BACKOFF_SECONDS, INEFFECTIVE_BACKOFF_SECONDS, LAST_BACKOFF_SECONDS
from tests.doubles.clock import Clock
from tests.doubles.triton import FakeEndpoint, FakeTriton
from tests.gateway.triton.fleet import (
    MODEL,
    SCHEDULE,
    TWO,
    call_of,
    checker_of,
    due,
    ready,
    running,
    settled,
    wait_until,
    watched,
)

RELOAD = [("unload", "net"), ("load", "net"), ("load", MODEL)]
THREE = {**TWO, "flowers.v1": TWO["flowers"]}
VERSIONS = {
    MODEL: ("preprocessor", "net:1"),
    f"{MODEL}.v1": ("preprocessor", "net:1"),
    f"{MODEL}.v2": ("preprocessor", "net:2"),
}


@pytest.fixture
def no_lock(monkeypatch) -> None:
    """Another gateway of this machine has the lock."""
    monkeypatch.setattr(recovery, "machine_lock", lambda _: contextlib.nullcontext(enter_result=False))


class Attempts:
    """Attempts to recover from the death of the network's process, and the clock of their intervals."""

    def __init__(self, triton: FakeTriton | None = None) -> None:
        self.triton = triton or FakeTriton()
        self.clock = Clock(1_000.0)
        self.checker = checker_of(self.triton, clock=self.clock)

    async def reload(self, *, dies: bool = True) -> int:
        """The number of reloads so far, after one more attempt."""
        await self.checker.probe_all()
        if dies:
            self.triton.kill("net")
        self.checker.state.suspect(MODEL, StubDied("net"), float("inf"))
        await self.checker.reload_failing()
        return self.triton.reloads("net")

    async def reload_failing(self) -> int:
        """The number of reloads so far, after one more attempt because of failed probes."""
        for _ in range(SCHEDULE.failures):
            await self.checker.probe_all()
        await self.checker.reload_failing()
        return self.triton.reloads("net")

    async def load(self) -> int:
        """The number of loads so far, after one more attempt."""
        await self.checker.follow()
        await self.checker.load_missing()
        return self.triton.done.count(("load", "net"))

    async def intervals(self, attempt: Callable[[], Awaitable[int]], number: int) -> list[float]:
        """The seconds between attempts, at most 5 % too long."""
        found, done = [], await attempt()
        for _ in range(number):
            began_at = self.clock.seconds
            while await attempt() == done:
                self.clock.seconds += max(0.1, 0.05 * (self.clock.seconds - began_at))
            done += 1
            found.append(self.clock.seconds - began_at)
        return found


@pytest.mark.parametrize(
    ("triton", "dies", "healing"),
    [
        (FakeTriton(unloaded={"net"}), True, recovery.OTHERS_RELOAD),
        (FakeTriton(), False, "idle"),
        (FakeTriton(away=True), True, "idle"),
    ],
    ids=["step unloaded by another gateway", "recovered before the lock", "unreachable"],
)
async def test_nothing_is_reloaded(triton, dies, healing):
    attempts = Attempts(triton)
    assert await attempts.reload(dies=dies) == 0
    assert (triton.done, attempts.checker.state.healing) == ([], healing)


async def test_nothing_is_reloaded_or_loaded_without_the_lock(no_lock):
    attempts = Attempts()
    assert await attempts.reload() == 0
    assert attempts.checker.state.healing == recovery.OTHERS_RELOAD
    attempts.triton.failed = {"net": "no memory"}
    assert await attempts.load() == 0


async def test_reload_is_completed_when_the_gateway_stops():
    attempts = Attempts(FakeTriton(load_seconds=0.05))
    attempt = asyncio.create_task(attempts.reload())
    await wait_until(lambda: bool(attempts.triton.done))
    assert attempts.triton.done == RELOAD[:1]
    attempt.cancel()
    with pytest.raises(asyncio.CancelledError):
        await attempt
    assert attempts.triton.done == RELOAD


async def test_reload_at_a_triton_that_was_removed_meanwhile_leaves_no_metric():
    attempts = Attempts(FakeTriton(load_seconds=0.05))
    attempt = asyncio.create_task(attempts.reload())
    await wait_until(lambda: bool(attempts.triton.done))
    checker, gauge = attempts.checker, ("gateway_triton_ready", {"triton": attempts.checker.state.address})
    assert REGISTRY.get_sample_value(*gauge) == 1
    attempt.cancel()  # as the pool does
    checker.forget_metrics()
    with pytest.raises(asyncio.CancelledError):
        await attempt
    assert REGISTRY.get_sample_value(*gauge) is None


@pytest.mark.parametrize(
    ("triton", "attempt", "longest"),
    [
        ({"failing": {"net"}, "recovers_on_reload": False}, Attempts.reload_failing, INEFFECTIVE_BACKOFF_SECONDS),
        ({"failed": {"net": "no memory"}, "refuses_to_load": {"net"}}, Attempts.load, LAST_BACKOFF_SECONDS),
    ],
    ids=["in vain", "failed load"],
)
async def test_intervals_between_attempts_grow(triton, attempt, longest):
    attempts = Attempts(FakeTriton(**triton))
    intervals = await attempts.intervals(partial(attempt, attempts), 11)
    assert intervals == sorted(intervals)
    assert intervals[0] == pytest.approx(FIRST_BACKOFF_SECONDS, abs=0.2)
    assert intervals[-1] == pytest.approx(longest, rel=0.06)


async def test_model_that_fails_every_request_is_reloaded():
    triton, checker = await watched(FakeTriton(ensembles=THREE))
    triton.failing.add("net")
    async with running(checker):
        await wait_until(lambda: triton.reloads("net") == 1)
        await wait_until(lambda: checker.state.ready)
    assert triton.reloads("flowers_net") == 0


async def test_single_failed_probe_does_not_reload():
    triton, checker = await watched()
    triton.failing.add("net")
    for _ in range(SCHEDULE.failures - 1):
        await due(checker)
        await checker.probe_all()
        await checker.reload_failing()
    triton.failing.clear()
    await settled(checker)
    assert checker.state.ready
    assert triton.done == []


async def test_ineffective_reload_is_reported_and_backed_off(monkeypatch):
    """It does not delay other recoveries."""
    monkeypatch.setattr(recovery, "FIRST_BACKOFF_SECONDS", 600.0)
    triton, checker = await watched(FakeTriton(ensembles=THREE, recovers_on_reload=False))
    before = HEALINGS.labels("in vain")._value.get()
    triton.failing.add("net")
    async with running(checker):
        await wait_until(lambda: "does not repair" in checker.state.healing)
        assert "restart this Triton" in checker.state.healing
        assert HEALINGS.labels("in vain")._value.get() == before + 1
        reloads = triton.reloads("net")
        probes = len(triton.calls)
        await wait_until(lambda: len(triton.calls) > probes + 20)
        assert triton.reloads("net") == reloads  # probes continue, reloads do not
        triton.kill("flowers_net")
        await wait_until(lambda: triton.reloads("flowers_net") == 1 and checker.state.answers("flowers"))


@pytest.mark.parametrize("model", [MODEL, "flowers"])
async def test_failed_load_of_a_step_is_retried(model):
    step = THREE[model][1]
    triton, checker = await watched(FakeTriton(ensembles=THREE, refuses_to_load={step}))
    triton.kill(step)
    async with running(checker):
        await wait_until(lambda: ("load", step) in triton.done)
        assert not checker.state.answers(model)
        triton.refuses_to_load.clear()
        await wait_until(lambda: ready(checker).get(model, False))


@pytest.mark.parametrize("model", [MODEL, "flowers"])
async def test_step_that_a_gateway_has_unloaded_before_it_died_is_loaded(model):
    step = THREE[model][1]
    triton, checker = await watched(FakeTriton(ensembles=THREE))
    checker.state.suspect(model, StubDied(step), float("inf"))
    triton.unloaded.add(step)
    async with running(checker):
        await wait_until(lambda: ready(checker).get(model, False))


@pytest.mark.parametrize("unloaded", ["birds", "flowers"])
async def test_only_an_unload_of_the_model_itself_ends_its_recovery(unloaded):
    """The gateway that has unloaded a step of it for a reload has died."""
    ensembles = {**TWO, "birds": ("birds_preprocessor", "birds_net")}
    triton, checker = await watched(FakeTriton(ensembles=ensembles))
    checker.state.expected.orphans["flowers_net"] = checker.state.clock()
    triton.unloaded |= {"flowers_net", unloaded, *ensembles[unloaded]}
    checker.state.forget({unloaded})
    async with running(checker):
        probes = len(triton.calls)
        await wait_until(lambda: len(triton.calls) > probes + 10)
        if unloaded == "birds":
            await wait_until(lambda: ready(checker) == {MODEL: True, "flowers": True})
    assert triton.done == ([("load", "flowers_net")] if unloaded == "birds" else [])


async def test_fresh_death_is_confirmed_by_a_probe_that_takes_long():
    """Triton takes 1 to 2 s to answer for a dead process."""
    triton, checker = await watched()
    triton.latency_seconds = lambda: 3600.0 if triton.dead else 0.0
    triton.kill("net")
    checker.state.suspect(MODEL, StubDied("net"), float("inf"))
    await checker.reload_failing()
    assert triton.reloads("net") == 1
    assert checker.state.ready


async def test_failures_of_calls_that_a_reload_has_overtaken_are_ignored():
    """Triton takes 1 to 2 s to answer for a dead process."""
    triton, checker = await watched()
    state, sent_at = checker.state, checker.state.clock()
    triton.kill("net")
    state.suspect(MODEL, StubDied("net"), sent_at)
    await checker.reload_failing()
    state.suspect(MODEL, StubDied("net"), sent_at)
    state.record(state.default, StubDied("net"), sent_at)
    assert state.ready
    await settled(checker)
    assert triton.reloads("net") == 1


async def test_only_one_of_two_gateways_reloads(monkeypatch):
    """On different machines each gets the lock. After its probe has failed, the later one looks again."""
    monkeypatch.setattr(recovery, "machine_lock", lambda _: contextlib.nullcontext(enter_result=True))
    triton, unloaded = FakeTriton(), asyncio.Event()
    endpoints = [FakeEndpoint("10.0.0.1:8001", triton) for _ in range(2)]
    one, other = (checker_of(triton, endpoint=endpoint) for endpoint in endpoints)
    load, infer = endpoints[0].load, endpoints[1].infer

    async def load_late(name):
        """Once the other gateway has seen the step unloaded."""
        unloaded.set()
        await others
        await load(name)

    async def answer_late(call, **options):
        try:
            return await infer(call, **options)
        finally:
            await unloaded.wait()

    for checker in (one, other):
        await settled(checker)
    triton.kill("net")
    for checker in (one, other):
        checker.state.suspect(MODEL, StubDied("net"), float("inf"))
    monkeypatch.setattr(endpoints[0], "load", load_late)
    monkeypatch.setattr(endpoints[1], "infer", answer_late)
    others = asyncio.create_task(other.reload_failing())
    await one.reload_failing()
    assert other.state.healing == recovery.OTHERS_RELOAD
    await other.probe_all()
    assert (triton.reloads("net"), one.state.ready, other.state.ready) == (1, True, True)


async def test_recovery_of_a_shared_step_keeps_ensembles_unloaded():
    triton, checker = await watched(FakeTriton(ensembles=dict(THREE)))
    triton.unloaded.add("flowers.v1")
    triton.kill("flowers_net")
    checker.state.suspect("flowers", StubDied("flowers_net"), float("inf"))
    await settled(checker)
    assert "flowers.v1" in triton.unloaded
    assert checker.state.answers("flowers")


async def test_other_versions_answer_during_a_rolling_reload():
    triton, checker = await watched(FakeTriton(ensembles=VERSIONS, load_seconds=0.2))
    triton.kill("net:2")
    async with running(checker):
        await wait_until(lambda: "reloading" in checker.state.healing)
        while "reloading" in checker.state.healing:
            assert checker.state.ready
            assert ready(checker) == {MODEL: True, f"{MODEL}.v1": True, f"{MODEL}.v2": False}
            assert triton.answer(call_of(b"image"), 1)
            await asyncio.sleep(0.005)
        await wait_until(lambda: ready(checker) == dict.fromkeys(VERSIONS, True))
    assert ("force_reload", "net") in triton.done
    assert not [what for what, _ in triton.done if what == "unload"]


async def test_rolling_reload_is_limited_to_the_failing_step():
    triton, checker = await watched(FakeTriton(ensembles=VERSIONS, recovers_on_reload=False))
    triton.failing.add("net:2")
    async with running(checker):
        await wait_until(lambda: triton.done.count(("force_reload", "net")) == 1)
        await wait_until(lambda: "does not repair" in checker.state.healing)
        assert checker.state.ready
        assert {what for what, _ in triton.done} <= {"force_reload", "load"}
        assert ("force_reload", "preprocessor") not in triton.done


@pytest.mark.parametrize(
    ("ensembles", "step", "dead", "suspects"),
    [
        *((THREE, step, {step}, [MODEL]) for step in THREE[MODEL]),
        *((THREE, step, {step}, ["flowers"]) for step in THREE["flowers"]),
        (VERSIONS, "preprocessor", {"preprocessor"}, [f"{MODEL}.v2"]),
        (VERSIONS, "net", {"net:1", "net:2"}, VERSIONS),
    ],
)
async def test_step_without_a_living_process_is_reloaded_once_with_every_ensemble(ensembles, step, dead, suspects):
    triton, checker = await watched(FakeTriton(ensembles=ensembles))
    triton.dead = set(dead)
    using = {name for name, steps in ensembles.items() if dead & set(steps)}
    for name in suspects:
        checker.state.suspect(name, StubDied(step), float("inf"))
    assert {name for name, answers in ready(checker).items() if not answers} == using
    await settled(checker)
    assert ready(checker) == dict.fromkeys(ensembles, True)
    assert triton.done[:2] == [("unload", step), ("load", step)]
    assert sorted(triton.done[1:]) == sorted(("load", name) for name in {step, *using})


async def test_failed_rolling_reload_is_followed_by_one_that_unloads():
    triton, checker = await watched(FakeTriton(ensembles=VERSIONS))
    triton.kill("net:2")
    triton.refuses_force_reload.add("net")
    async with running(checker):
        await wait_until(lambda: triton.reloads("net") == 1)
        await wait_until(lambda: ready(checker) == dict.fromkeys(VERSIONS, True))
    assert triton.done.count(("force_reload", "net")) == 1
