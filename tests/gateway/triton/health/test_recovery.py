"""One attempt to reload or to load: its lock, what stops it, and its backoff."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gateway.triton.client import StubDied
from gateway.triton.health.recovery import FIRST_BACKOFF_SECONDS, INEFFECTIVE_BACKOFF_SECONDS, LAST_BACKOFF_SECONDS
from tests.doubles.clock import Clock
from tests.doubles.triton import FakeTriton
from tests.gateway.triton.fleet import MODEL, checker_of, wait_until

RELOAD = [("unload", "net"), ("load", "net"), ("load", MODEL)]


@contextmanager
def no_lock(_: str) -> Iterator[bool]:
    yield False


class Attempts:
    """Attempts to recover from the death of the network's process, and the clock of their intervals."""

    def __init__(self, triton: FakeTriton | None = None, **options: object) -> None:
        self.triton = triton or FakeTriton()
        self.clock = Clock(1_000.0)
        self.checker = checker_of(self.triton, clock=self.clock, **options)

    async def reload(self, *, dies: bool = True) -> int:
        """The number of reloads so far, after one more attempt."""
        await self.checker.probe_all()
        if dies:
            self.triton.kill("net")
        self.checker.state.suspect(MODEL, StubDied("net"), float("inf"))
        await self.checker.reload_failing()
        return self.triton.reloads("net")

    async def load(self) -> int:
        """The number of loads so far, after one more attempt."""
        await self.checker.follow()
        await self.checker.load_missing()
        return self.triton.done.count(("load", "net"))

    async def intervals(self, attempt: str, number: int, step_seconds: float) -> list[float]:
        """The seconds between this number of attempts."""
        found, done = [], await getattr(self, attempt)()
        for _ in range(number):
            began_at = self.clock.seconds
            while await getattr(self, attempt)() == done:
                self.clock.seconds += step_seconds
            done += 1
            found.append(self.clock.seconds - began_at)
        return found


@pytest.mark.parametrize(
    ("options", "dies", "healing"),
    [
        ({"take_lock": no_lock}, True, "another gateway is reloading"),
        ({"triton": FakeTriton(unloaded={"net"})}, True, "another gateway is reloading"),
        ({}, False, "idle"),
        ({"triton": FakeTriton(away=True)}, True, "idle"),
    ],
    ids=["no lock", "step unloaded by another gateway", "recovered before the lock", "unreachable"],
)
async def test_nothing_is_reloaded(options, dies, healing):
    attempts = Attempts(**options)
    assert await attempts.reload(dies=dies) == 0
    assert attempts.triton.done == []
    assert attempts.checker.health().healing == healing


async def test_step_left_unloaded_is_loaded_once_it_can_be():
    """Also the ensemble over it, which was ready."""
    attempts = Attempts(FakeTriton(refuses_to_load={"net"}))
    assert await attempts.reload() == 1
    assert attempts.checker.health().healing.startswith("failed: ")
    attempts.triton.refuses_to_load.clear()
    await attempts.load()
    await attempts.checker.probe_all()
    assert attempts.checker.state.ready


async def test_reload_is_completed_when_the_gateway_stops():
    attempts = Attempts(FakeTriton(load_seconds=0.05))
    attempt = asyncio.create_task(attempts.reload())
    await wait_until(lambda: bool(attempts.triton.done))
    assert attempts.triton.done == RELOAD[:1]
    attempt.cancel()
    with pytest.raises(asyncio.CancelledError):
        await attempt
    assert attempts.triton.done == RELOAD


async def test_ineffective_reloads_are_repeated_at_growing_intervals():
    attempts = Attempts(FakeTriton(recovers_on_reload=False))
    attempts.triton.failing.add("net")
    intervals = await attempts.intervals("reload", 12, 0.5)
    assert intervals == sorted(intervals)
    assert (intervals[0] <= 2 * FIRST_BACKOFF_SECONDS, intervals[-1]) == (True, INEFFECTIVE_BACKOFF_SECONDS)


async def test_missing_model_is_loaded_at_growing_intervals():
    """The intervals grow to LAST_BACKOFF_SECONDS while the model cannot be loaded."""
    attempts = Attempts(FakeTriton(failed={"net": "no memory"}, refuses_to_load={"net"}))
    intervals = await attempts.intervals("load", 10, 0.1)
    assert intervals[0] == pytest.approx(FIRST_BACKOFF_SECONDS, abs=0.2)
    assert intervals == sorted(intervals)
    assert intervals[-1] == pytest.approx(LAST_BACKOFF_SECONDS, abs=0.2)


async def test_model_that_another_gateway_loads_is_not_loaded():
    attempts = Attempts(FakeTriton(failed={"net": "no memory"}), take_lock=no_lock)
    assert await attempts.load() == 0
