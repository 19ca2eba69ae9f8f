"""Calls share the gate; an image that may crash a process gets it exclusively."""

import asyncio

from gateway.triton.pool import CallGate


async def test_lone_call_waits_for_the_others_and_they_for_it():
    gate, order = CallGate(), []

    gate.__enter__()

    async def alone() -> None:
        async with gate.alone():
            order.append("alone")
            await asyncio.sleep(0)
            order.append("alone ends")

    async def together() -> None:
        await gate.opened()
        with gate:
            order.append("together")

    lone = asyncio.create_task(alone())
    await asyncio.sleep(0)
    assert not gate.is_open
    later = asyncio.create_task(together())
    await asyncio.sleep(0)
    assert order == []
    gate.__exit__()
    await asyncio.gather(lone, later)
    assert order == ["alone", "alone ends", "together"]


async def test_lone_call_that_is_cancelled_while_it_waits_opens_the_gate():
    gate = CallGate()
    with gate:
        lone = asyncio.create_task(gate.alone().__aenter__())
        await asyncio.sleep(0)
        assert not gate.is_open
        lone.cancel()
        await asyncio.gather(lone, return_exceptions=True)
        assert gate.is_open
