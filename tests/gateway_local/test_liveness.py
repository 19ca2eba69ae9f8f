"""A liveness probe fails only if a restart helps."""

import asyncio

import pytest

from gateway_local.liveness import reason_to_restart
from tests.doubles.triton import FakeEndpoint, FakeTriton
from tests.gateway.triton.fleet import MODEL


def reason(triton: FakeTriton, patience_seconds: float = 0.1, later=None) -> str | None:
    async def ask() -> str | None:
        if later is not None:
            asyncio.get_running_loop().call_later(0.05, later)
        endpoint = FakeEndpoint("127.0.0.1:8001", triton)
        return await reason_to_restart(endpoint, MODEL, patience_seconds=patience_seconds, pause_seconds=0.01)

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        ({}, None),
        ({"failing": {"net"}}, MODEL),
        ({"away": True}, "127.0.0.1:8001"),
        ({"unloaded": {"net"}}, None),
        ({"ensembles": {}}, None),
    ],
    ids=["answers", "fails", "away", "unloaded", "no model"],
)
def test_restart_has_a_reason(behaviour, words):
    found = reason(FakeTriton(**behaviour), patience_seconds=0.1 if words else 60)
    assert (found is None) == (words is None)
    assert words is None or words in found


def test_triton_that_recovers_in_time_is_alive():
    triton = FakeTriton(failing={"net"})
    assert reason(triton, patience_seconds=30, later=triton.failing.clear) is None
