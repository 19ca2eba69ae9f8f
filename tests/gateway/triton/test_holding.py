"""While no Triton is ready, calls are held up to the configured time."""

import asyncio
import time

import pytest

from gateway.errors import GatewayError, TritonUnreachable
from gateway.triton.quarantine import Quarantine
from gateway.triton.seal import Seal
from gateway.triton.triton_backend import TritonBackend
from tests.gateway.triton.fleet import MODEL, Fleet, call_of, fleet_of, wait_until


def holding(fleet: Fleet, seconds: float) -> TritonBackend:
    """A second backend over the fleet's Tritons, which holds calls."""
    return TritonBackend(
        fleet.pool,
        model_name=MODEL,
        seal=Seal(b"secret of a test"),
        quarantine=Quarantine(600),
        hold_seconds=seconds,
    )


async def all_away(fleet: Fleet) -> None:
    for triton in fleet.tritons.values():
        triton.away = True
    await wait_until(lambda: fleet.ready() == 0)


async def test_held_calls_are_answered_once_a_triton_is_ready():
    async with fleet_of(2) as fleet:
        await all_away(fleet)
        backend = holding(fleet, 60)
        calls = [asyncio.ensure_future(backend.infer(call_of(b"image %d" % n, seconds=60))) for n in range(3)]
        done, _ = await asyncio.wait(calls, timeout=0.3)
        assert not done, "no Triton was ready to answer"
        for triton in fleet.tritons.values():
            triton.away = False
        for result in await asyncio.gather(*calls):
            assert result.rows[0].error is None


async def test_held_call_is_refused_after_the_hold_time():
    async with fleet_of(1) as fleet:
        await all_away(fleet)
        started = time.monotonic()
        with pytest.raises(TritonUnreachable):
            await holding(fleet, 0.3).infer(call_of(b"image", seconds=60))
        assert time.monotonic() - started >= 0.3


async def test_call_is_not_held_beyond_its_deadline():
    async with fleet_of(1) as fleet:
        await all_away(fleet)
        async with asyncio.timeout(20):
            with pytest.raises(GatewayError):
                await holding(fleet, 3600).infer(call_of(b"image", seconds=0.3))


async def test_call_is_refused_at_once_without_the_setting():
    async with fleet_of(1) as fleet:
        await all_away(fleet)
        async with asyncio.timeout(20):
            with pytest.raises(TritonUnreachable):
                await fleet.backend.infer(call_of(b"image", seconds=3600))
