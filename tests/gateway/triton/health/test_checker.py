"""A health checker finds out which models and versions are ready, and reloads failing ones."""

import asyncio
import contextlib
import random

import pytest
import structlog

from gateway import metrics
from gateway.errors import InferenceFailed, TritonUnreachable
from gateway.metrics import HEALINGS
from gateway.triton.client import StubDied
from gateway.triton.health import recovery
from gateway.triton.health.recovery import RecoveringChecker
from gateway.triton.health.state import Schedule
from tests.doubles.clock import Clock
from tests.doubles.triton import FakeEndpoint, FakeTriton
from tests.gateway.triton.fleet import MODEL, SCHEDULE, call_of, checker_of, due, running, wait_until

THREE = {
    MODEL: ("preprocessor", "net"),
    "flowers": ("flowers_preprocessor", "flowers_net"),
    "flowers.v1": ("flowers_preprocessor", "flowers_net"),
}


async def settled(checker) -> None:
    for _ in range(3):
        await checker.probe_all()
        await checker.reload_failing()


async def watched(triton: FakeTriton | None = None, **options) -> tuple[FakeTriton, RecoveringChecker]:
    """A Triton and its checker, which has probed it."""
    triton = triton or FakeTriton()
    checker = checker_of(triton, **options)
    await settled(checker)
    return triton, checker


def ready(checker) -> dict[str, bool]:
    return {model.name: model.ready for model in checker.state.summary().models}


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
        await wait_until(lambda: "does not repair" in checker.state.summary().healing)
        assert "restart this Triton" in checker.state.summary().healing
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


async def test_fresh_death_is_confirmed_by_a_probe_that_takes_long():
    """Triton takes 1 to 2 s to answer for a dead process."""
    triton, checker = await watched()
    triton.latency_seconds = lambda: 3600.0 if triton.dead else 0.0
    triton.kill("net")
    checker.state.suspect(MODEL, StubDied("net"), float("inf"))
    await checker.reload_failing()
    assert triton.reloads("net") == 1
    assert checker.state.ready


async def test_probe_sent_before_a_reload_is_ignored(monkeypatch):
    triton = FakeTriton()
    endpoint = FakeEndpoint("10.0.0.1:8001", triton)
    checker = checker_of(triton, endpoint=endpoint)
    await settled(checker)
    infer, answered, delivered = endpoint.infer, asyncio.Event(), asyncio.Event()

    async def late(call, **options):
        """The first answer comes only once it may be delivered."""
        try:
            return await infer(call, **options)
        finally:
            if not answered.is_set():
                answered.set()
                await delivered.wait()

    monkeypatch.setattr(endpoint, "infer", late)
    triton.kill("net")
    checker.state.suspect(MODEL, StubDied("net"), float("inf"))
    probe = asyncio.create_task(checker.probe_all())
    await answered.wait()
    await checker.reload_failing()
    assert triton.reloads("net") == 1
    assert checker.state.ready
    delivered.set()
    await probe
    assert checker.state.ready
    await settled(checker)
    assert checker.state.ready
    assert triton.reloads("net") == 1


@pytest.mark.parametrize("late_by", ["pause", "probe"])
async def test_only_one_of_two_gateways_reloads(monkeypatch, late_by):
    """On different machines each gets the lock. After its pause, and after its probe, the other one looks again."""
    triton, unloaded = FakeTriton(), asyncio.Event()
    endpoints = [FakeEndpoint("10.0.0.1:8001", triton) for _ in range(2)]
    monkeypatch.setattr(random, "uniform", lambda _, most: most)
    pauses = (0.0, 0.2 if late_by == "pause" else 0.0)
    taken = {"take_lock": lambda _: contextlib.nullcontext(enter_result=True)}
    one, other = (
        checker_of(triton, endpoint=endpoint, jitter_seconds=pause, **taken)
        for endpoint, pause in zip(endpoints, pauses, strict=True)
    )
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
    if late_by == "probe":
        monkeypatch.setattr(endpoints[1], "infer", answer_late)
    others = asyncio.create_task(other.reload_failing())
    await one.reload_failing()
    assert other.state.summary().healing == recovery.OTHERS_RELOAD
    await other.probe_all()
    assert (triton.reloads("net"), one.state.ready, other.state.ready) == (1, True, True)


async def test_health_loop_survives_exceptions():
    triton = FakeTriton()
    checker = checker_of(triton)
    before = metrics.WATCH_FAULTS._value.get()
    triton.ensembles = None  # an exception that is no error of Triton
    async with running(checker):
        await wait_until(lambda: metrics.WATCH_FAULTS._value.get() > before)
        triton.ensembles = {MODEL: ("preprocessor", "net")}
        await wait_until(lambda: checker.state.ready)


@pytest.mark.parametrize(("answers", "least", "most"), [(10, 4, 8), (0, 20, 20)], ids=["answers", "no traffic"])
async def test_client_answers_reduce_but_do_not_replace_probes(answers, least, most):
    """With answers every fourth of 20 intervals has a probe, and each without them."""
    clock = Clock()
    triton, checker = await watched(clock=clock)
    probes = len(triton.calls)
    for _ in range(20 * max(answers, 1)):
        clock.seconds += SCHEDULE.interval_seconds / max(answers, 1)
        if answers:
            checker.state.answered(MODEL, clock.seconds)
        await checker.probe_all()
    assert checker.state.ready
    assert least <= len(triton.calls) - probes <= most


async def test_unreachable_triton_brings_the_next_probe_forward():
    """A single failed call keeps the model ready."""
    clock = Clock()
    triton, checker = await watched(clock=clock)
    triton.away = True
    checker.state.suspect(MODEL, TritonUnreachable(), 1.0)
    assert not checker.state.ready
    probes = len(triton.calls)
    triton.away = False
    await checker.probe_all()
    assert len(triton.calls) == probes + 1
    assert checker.state.ready
    checker.state.suspect(MODEL, InferenceFailed(), float("inf"))
    assert checker.state.ready


async def test_triton_that_starts_beside_the_gateway_is_reported_once_it_is_late():
    clock, triton = Clock(), FakeTriton()
    triton.away = True
    checker = checker_of(triton, clock=clock, schedule=Schedule(5.0, 1.0))
    with structlog.testing.capture_logs() as captured:
        await checker.probe_all()
        assert not checker.state.ready
        assert captured == []
        clock.seconds += 5.0
        await checker.probe_all()
    assert [event["event"] for event in captured] == ["triton_not_ready"]


async def test_model_without_requests_is_probed_rarely():
    clock, schedule = Clock(), Schedule(5.0, 1.0)
    _, checker = await watched(clock=clock, schedule=schedule)
    state = checker.state

    async def seconds_between_probes() -> float:
        await checker.probe_all()
        probed_at = clock.seconds
        while not state.is_due(state.default):
            clock.seconds += 0.5
            assert state.ready
        await checker.probe_all()
        return clock.seconds - probed_at

    assert await seconds_between_probes() <= 5.0
    clock.seconds += schedule.rest_seconds
    assert 20.0 < await seconds_between_probes() <= 30.0
    state.answered(MODEL, clock.seconds)
    clock.seconds += 5.0
    assert await seconds_between_probes() <= 5.0


async def test_triton_that_goes_is_noticed_at_rest():
    """Between two probes, by the calls that follow rollouts."""
    triton, checker = await watched()
    triton.away = True
    await checker.follow()
    assert not checker.state.ready
    triton.away = False
    await checker.probe_all()
    assert checker.state.ready


async def test_model_unloaded_on_purpose_is_not_probed_or_reloaded():
    triton, checker = await watched(FakeTriton(ensembles=dict(THREE)))
    triton.unloaded.update({"flowers", "flowers.v1"})
    checker.state.forget({"flowers", "flowers.v1"})
    async with running(checker):
        probes = len(triton.calls)
        await wait_until(lambda: len(triton.calls) > probes + 10)
    assert ready(checker) == {MODEL: True}
    assert triton.done == []


async def test_recovery_of_a_shared_step_keeps_ensembles_unloaded():
    triton, checker = await watched(FakeTriton(ensembles=dict(THREE)))
    triton.unloaded.add("flowers.v1")
    triton.kill("flowers_net")
    checker.state.suspect("flowers", StubDied("flowers_net"), float("inf"))
    await settled(checker)
    assert "flowers.v1" in triton.unloaded
    assert checker.state.answers("flowers")


VERSIONS = {
    MODEL: ("preprocessor", "net:1"),
    f"{MODEL}.v1": ("preprocessor", "net:1"),
    f"{MODEL}.v2": ("preprocessor", "net:2"),
}


async def test_other_versions_answer_during_a_rolling_reload():
    triton, checker = await watched(FakeTriton(ensembles=VERSIONS, load_seconds=0.2))
    triton.kill("net:2")
    async with running(checker):
        await wait_until(lambda: "reloading" in checker.state.summary().healing)
        while "reloading" in checker.state.summary().healing:
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
        await wait_until(lambda: "does not repair" in checker.state.summary().healing)
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
