"""One attempt to reload or to load: its lock, what stops it, and its backoff."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from gateway.triton.client import StubDied
from gateway.triton.health.recovery import FIRST_BACKOFF_SECONDS, INEFFECTIVE_BACKOFF_SECONDS, LAST_BACKOFF_SECONDS
from tests.doubles.clock import Clock
from tests.doubles.triton import FakeTriton
from tests.gateway.triton.fleet import MODEL, SCHEDULE, checker_of, wait_until

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
    assert attempts.checker.state.summary().healing == healing


async def test_reload_is_completed_when_the_gateway_stops():
    attempts = Attempts(FakeTriton(load_seconds=0.05))
    attempt = asyncio.create_task(attempts.reload())
    await wait_until(lambda: bool(attempts.triton.done))
    assert attempts.triton.done == RELOAD[:1]
    attempt.cancel()
    with pytest.raises(asyncio.CancelledError):
        await attempt
    assert attempts.triton.done == RELOAD


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


async def test_model_that_another_gateway_loads_is_not_loaded():
    attempts = Attempts(FakeTriton(failed={"net": "no memory"}), take_lock=no_lock)
    assert await attempts.load() == 0
