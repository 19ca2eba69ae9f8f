"""Pauses of a worker's event loop: measured, and logged where they matter."""

import asyncio
import signal
import time

import pytest
import structlog
from prometheus_client import REGISTRY

from gateway.server.heartbeat import (
    ALONE_SECONDS,
    BLOCKED_SECONDS,
    LONG_SECONDS,
    REST_SECONDS,
    WINDOW_SECONDS,
    Heartbeat,
    Pauses,
)
from tests.gateway.triton.fleet import wait_until


def told() -> float:
    value = REGISTRY.get_sample_value("gateway_event_loop_pause_seconds")
    assert value is not None
    return value


def test_longest_pause_counts_until_its_window_ends():
    pauses = Pauses(100.0)
    pauses.note(100.1, 0.002, 0.001)
    pauses.note(101.0, 0.04, 0.03)
    pauses.note(102.0, 0.003, 0.001)
    assert told() == 0.04
    pauses.note(101.0 + WINDOW_SECONDS - 0.1, 0.001, 0.001)
    assert told() == 0.04
    pauses.note(101.0 + WINDOW_SECONDS, 0.001, 0.001)
    assert told() == 0.003


def test_own_pauses_of_a_second_are_logged_after_it():
    """Of the gateway's computing, and of a plug-in that blocks; a busy machine's are in the metric."""
    pauses = Pauses(100.0)
    with structlog.testing.capture_logs() as captured:
        pauses.note(100.5, 2 * LONG_SECONDS, 1.5 * LONG_SECONDS)
        pauses.note(100.9, 3 * LONG_SECONDS, 2 * LONG_SECONDS)
        assert captured == []
        pauses.note(101.1, 2 * BLOCKED_SECONDS, 0.0)
        pauses.note(102.1, 2 * BLOCKED_SECONDS, 0.0, "guilty")
        pauses.note(102.2, BLOCKED_SECONDS, 0.0, "guilty")
        pauses.note(103.0, 0.0, 0.0)
    common = {"event": "loop_paused", "log_level": "warning"}
    assert captured == [
        {**common, "seconds": 0.15, "cpu_seconds": 0.1, "count": 2},
        {**common, "seconds": 0.5, "cpu_seconds": 0.0, "count": 1, "plugin": "guilty"},
    ]


async def test_blocking_work_is_a_pause():
    with Heartbeat():
        await wait_until(lambda: told() < 0.15)  # the test before has left its own
        while told() <= 0.15:
            time.sleep(0.2)  # noqa: ASYNC251  # what is to be found out
            await asyncio.sleep(0.01)  # for the beat that was late


@pytest.fixture
def free_alarm():
    """The signal as a process begins with it; pytest-timeout has a handler."""
    timer, handler = signal.setitimer(signal.ITIMER_REAL, 0), signal.signal(signal.SIGALRM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, *timer)


@pytest.mark.usefixtures("free_alarm")
async def test_pause_has_the_name_of_the_plug_in_that_blocks():
    beats = Heartbeat(owner_of=lambda modules: "guilty" if __name__ in modules else "")
    with structlog.testing.capture_logs() as captured, beats:
        while not captured:
            time.sleep(2 * BLOCKED_SECONDS)  # noqa: ASYNC251  # what is to be found out
            await asyncio.sleep(0.01)
    assert captured[0]["plugin"] == "guilty"


@pytest.mark.parametrize(("connected", "pause_seconds"), [(True, REST_SECONDS), (False, ALONE_SECONDS)])
async def test_beats_are_rare_at_rest(monkeypatch, connected, pause_seconds):
    beats = []
    monkeypatch.setattr("gateway.timing.beat", lambda: beats.append(time.monotonic()))
    with Heartbeat(lambda: connected):
        await asyncio.sleep(1.0)
    assert len(beats) <= 1.0 / pause_seconds + 3
