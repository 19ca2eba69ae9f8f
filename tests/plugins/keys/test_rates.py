"""Rates: how many images may pass, and when the next one may, in one process and in several."""

import asyncio
import multiprocessing
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway_plugins.keys.quota import Rate
from gateway_plugins.keys.rates import ProcessRates, Rates, WorkerRates
from tests.doubles.clock import Clock


@pytest.fixture(params=["process", "workers"])
def rates(request, clock, tmp_path) -> Rates:
    return ProcessRates(clock) if request.param == "process" else WorkerRates(tmp_path / "rates", clock)


TEN = Rate(10.0, 5, "10/s")


async def test_burst_passes_at_once_and_the_next_image_does_not(rates):
    grants = [await rates.take("a", TEN, 0.0) for _ in range(6)]
    assert [grant.admitted for grant in grants] == [True] * 5 + [False]
    assert [grant.remaining for grant in grants] == [4, 3, 2, 1, 0, 0]
    assert grants[-1].wait_seconds == pytest.approx(0.1)
    assert grants[0].next_seconds == 0
    assert grants[4].next_seconds == pytest.approx(0.1)


async def test_rate_is_restored_with_time_up_to_the_burst(rates, clock):
    """However many images were refused meanwhile."""
    for _ in range(100):
        await rates.take("a", TEN, 0.0)
    clock.seconds += 0.21
    assert [(await rates.take("a", TEN, 0.0)).admitted for _ in range(3)] == [True, True, False]
    clock.seconds += 1_000
    assert [(await rates.take("a", TEN, 0.0)).admitted for _ in range(6)] == [True] * 5 + [False]


async def test_image_that_may_wait_is_given_its_time(rates):
    waits = [(await rates.take("a", TEN, 0.25)).wait_seconds for _ in range(5 + 2)]
    assert waits == pytest.approx([0] * 5 + [0.1, 0.2])
    refused = await rates.take("a", TEN, 0.25)
    assert not refused.admitted
    assert refused.wait_seconds == pytest.approx(0.3)


async def test_keys_have_rates_of_their_own_and_forgotten_ones_begin_anew(rates):
    slow = Rate(0.001, 1, "0.001/s")
    assert [(await rates.take(name, slow, 0.0)).admitted for name in "aab"] == [True, False, True]
    rates.forget("a")
    rates.forget("never-seen")
    assert (await rates.take("a", slow, 0.0)).admitted


@given(
    pauses=st.lists(st.floats(0, 3), min_size=1, max_size=200),
    per_second=st.floats(0.01, 1_000),
    burst=st.integers(1, 50),
    most_seconds=st.sampled_from([0.0, 0.5, 10.0]),
)
async def test_no_time_span_has_more_images_than_burst_and_rate(pauses, per_second, burst, most_seconds):
    clock, rate, passed = Clock(1_000.0), Rate(per_second, burst, ""), []
    rates = ProcessRates(clock)
    for pause in pauses:
        clock.seconds += pause
        grant = await rates.take("a", rate, most_seconds)
        if grant.admitted:
            passed.append(clock.seconds + grant.wait_seconds)
    for first, began in enumerate(passed):
        for last in range(first, len(passed)):
            assert last - first + 1 <= burst + per_second * (passed[last] - began) + 1e-3


def _take_all(folder: Path, attempts: int) -> int:
    """The images that one worker gets of a rate, as a process of its own."""

    async def take() -> int:
        rates = WorkerRates(folder)
        return sum([(await rates.take("a", Rate(0.001, 300, ""), 0.0)).admitted for _ in range(attempts)])

    return asyncio.run(take())


def test_workers_share_one_rate(tmp_path):
    """Four workers at once; the tolerance is for one that a busy machine stops for 50 ms while it has the lock."""
    with multiprocessing.get_context("spawn").Pool(4) as workers:
        taken = workers.starmap(_take_all, [(tmp_path / "rates", 300)] * 4)
    assert 300 <= sum(taken) <= 330


def test_worker_that_is_stopped_with_the_lock_stops_no_other(tmp_path):
    """It counts without the lock in the end."""
    rates = WorkerRates(tmp_path / "rates")
    asyncio.run(rates.take("a", TEN, 0.0))
    code = (
        "import fcntl, sys; file = open(sys.argv[1], 'r+b'); fcntl.lockf(file, fcntl.LOCK_EX);"
        "print('locked', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, tmp_path / "rates" / "a"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"locked\n"
        assert asyncio.run(rates.take("a", TEN, 0.0)).admitted
        holder.communicate()
    assert asyncio.run(rates.take("a", TEN, 0.0)).admitted
