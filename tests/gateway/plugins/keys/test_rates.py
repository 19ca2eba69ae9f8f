"""Rates: how many images may pass, and when the next one may, in one process."""

import asyncio
from contextlib import nullcontext

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import RateLimited
from gateway.plugins.keys.quota import Rate, read_quota
from gateway.plugins.keys.rates import Rates
from gateway.plugins.keys.tenant import Tenant
from tests.settings import Settings


@pytest.fixture
def wall(clock, monkeypatch):
    """The clock of the counters; a window begins at 0."""
    monkeypatch.setattr("time.time", clock)
    clock.seconds = 1_000_000.0
    return clock


async def test_images_of_the_rate_pass_at_once_and_the_next_one_does_not(wall):
    """Each key has its rate."""
    rates = Rates(None)
    grants = [await rates.take("a", Rate(5, "s")) for _ in range(6)]
    assert [grant.admitted for grant in grants] == [True] * 5 + [False]
    assert [grant.remaining for grant in grants] == [4, 3, 2, 1, 0, 0]
    assert [grant.next_seconds for grant in grants] == pytest.approx([0, 0, 0, 0, 1, 1])
    assert (await rates.take("b", Rate(5, "s"))).admitted


@settings(deadline=None)
@given(pauses=st.lists(st.floats(0, 0.6), min_size=1, max_size=100), images=st.integers(1, 20))
def test_no_time_span_has_more_images_than_promised(pauses, images):
    """The images of one window at once, and the rate; after the time that a refusal names, one passes."""

    async def check() -> None:
        now, passed, rates = 1_000_000.3, [], Rates(None)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("time.time", lambda: now)
            for pause in pauses:
                now += pause
                for _ in range(images // 2 + 1):
                    grant = await rates.take("a", Rate(images, "s"))
                    if not grant.admitted:
                        now += grant.next_seconds + 1e-6
                        assert (await rates.take("a", Rate(images, "s"))).admitted
                    passed.append(now)
        for first, began in enumerate(passed):
            for last in range(first, len(passed)):
                assert last - first + 1 <= images + images * (passed[last] - began) + 1 + 1e-3

    asyncio.run(check())


async def test_images_that_wait_pass_at_the_rate_and_the_rest_are_refused():
    """Images whose turn does not come within the time to wait are refused immediately."""
    tenant = Tenant("waiting", read_quota(["rate=20/s"]), Settings(_env_file=None), Rates(None))
    clock = asyncio.get_running_loop().time
    began = clock()

    async def charge() -> float | None:
        """The time after which the image passed; None if it was refused."""
        try:
            await tenant.charge(1.0, {"wait": nullcontext()})
        except RateLimited:
            return None
        return clock() - began

    waits = await asyncio.gather(*(charge() for _ in range(100)))
    passed = sorted(wait for wait in waits if wait is not None)
    assert 20 <= len(passed) <= 20 + 20 * passed[-1] + 1
    assert waits[-1] is None
    await tenant.charge(2.0, {"wait": nullcontext()})  # the images that waited have left nothing
