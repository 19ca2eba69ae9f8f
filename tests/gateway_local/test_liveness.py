"""A liveness probe fails only if a restart helps."""

import asyncio

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


def test_triton_that_answers_is_alive():
    assert reason(FakeTriton(), patience_seconds=60) is None


def test_model_that_always_fails_is_named_as_the_reason():
    assert MODEL in reason(FakeTriton(failing={"net"}))


def test_unreachable_triton_is_dead():
    assert "127.0.0.1:8001" in reason(FakeTriton(away=True))


def test_triton_that_recovers_in_time_is_alive():
    triton = FakeTriton(failing={"net"})
    assert reason(triton, patience_seconds=30, later=triton.failing.clear) is None


def test_unloaded_model_is_no_reason_to_restart():
    assert reason(FakeTriton(unloaded={"net"})) is None
    assert reason(FakeTriton(ensembles={})) is None
