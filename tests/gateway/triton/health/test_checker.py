"""A health checker finds out which models and versions are ready."""

import pytest
import structlog

from gateway import metrics
from gateway.errors import InferenceFailed, TritonUnreachable
from gateway.triton.health.state import Schedule
from tests.doubles.clock import Clock
from tests.doubles.triton import FakeTriton
from tests.gateway.triton.fleet import MODEL, SCHEDULE, TWO, checker_of, ready, running, wait_until, watched


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
    triton, checker = await watched(FakeTriton(ensembles=dict(TWO)))
    triton.unloaded.add("flowers")
    checker.state.forget({"flowers"})
    async with running(checker):
        probes = len(triton.calls)
        await wait_until(lambda: len(triton.calls) > probes + 10)
    assert ready(checker) == {MODEL: True}
    assert triton.done == []
