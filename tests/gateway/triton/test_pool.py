"""A gateway uses and probes its subset of many Tritons; calls of suspected images have a Triton to themselves."""

import asyncio
from types import SimpleNamespace

from gateway import metrics
from gateway.deadline import Deadline
from gateway.triton import pool
from gateway.triton.balancing import rendezvous_order, subset_size
from gateway.triton.replica import CallGate
from tests.gateway.triton.fleet import call_of, fleet_of, wait_until


async def test_gateway_uses_its_subset_of_many_tritons():
    async with fleet_of(20, aperture=4) as fleet:
        assert len(fleet.backend.health()) == 4
        for number in range(40):
            await fleet.backend.infer(call_of(b"image %d" % number))
        called = {address for address, triton in fleet.tritons.items() if triton.calls}
        assert called == {health.address for health in fleet.backend.health()}


async def test_failed_replica_is_replaced_until_it_recovers():
    async with fleet_of(20, aperture=4) as fleet:
        first = fleet.backend.health()[0].address
        fleet.tritons[first].away = True
        await wait_until(lambda: fleet.ready() == 4 and len(fleet.backend.health()) == 5)
        fleet.tritons[first].away = False
        await wait_until(lambda: len(fleet.backend.health()) == 4 and fleet.ready() == 4)
        assert fleet.backend.health()[0].address == first


async def test_load_request_reaches_unused_tritons():
    async with fleet_of(6, aperture=2) as fleet:
        await fleet.backend.load("ensemble_model")
        assert all(("load", "ensemble_model") in triton.done for triton in fleet.tritons.values())


def test_subset_is_large_enough_for_images_in_flight():
    assert subset_size(8, 32) == 8
    assert subset_size(8, 256) == 32
    assert subset_size(0, 256) == 0


def test_subsets_cover_all_tritons_evenly_and_change_little():
    addresses = [f"10.0.0.{number}:8001" for number in range(64)]
    shares = [set(rendezvous_order(addresses, f"gateway {number}")[:8]) for number in range(200)]
    used = [sum(address in share for share in shares) for address in addresses]
    assert min(used) > 0.4 * 200 * 8 / 64
    assert max(used) < 2 * 200 * 8 / 64
    without = [set(rendezvous_order(addresses[1:], f"gateway {number}")[:8]) for number in range(200)]
    assert all(len(before - after) <= 1 for before, after in zip(shares, without, strict=True))


async def test_health_checker_that_ends_is_counted_and_restarted(monkeypatch):
    monkeypatch.setattr(pool, "RESTART_SECONDS", 0.01)

    class Ends:
        state = SimpleNamespace(address="10.0.0.1:8001")
        runs = 0

        async def run(self) -> None:
            self.runs += 1
            if self.runs == 2:
                raise RuntimeError("inside")

    checker, before = Ends(), metrics.WATCH_FAULTS._value.get()
    task = asyncio.create_task(pool._run_checker(checker))
    await wait_until(lambda: checker.runs > 3)
    task.cancel()
    assert metrics.WATCH_FAULTS._value.get() >= before + 3


async def test_lone_call_waits_for_the_others_and_they_for_it():
    gate, order = CallGate(), []

    gate.__enter__()

    async def alone() -> None:
        async with gate.alone():
            order.append("alone")
            await asyncio.sleep(0)
            order.append("alone ends")

    async def together() -> None:
        await gate.opened_by(Deadline.after(60))
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
