"""A gateway watches and uses its share of many Tritons, and leaves none unwatched by accident."""

import asyncio

from gateway import metrics
from gateway.triton import pool
from gateway.triton.balancing import rendezvous_order, subset_size
from tests.gateway.triton.fleet import call_of, fleet_of, run, wait_until


def test_of_many_tritons_a_gateway_watches_its_share():
    async def test() -> None:
        async with fleet_of(20, aperture=4) as fleet:
            assert len(fleet.backend.health()) == 4
            for number in range(40):
                await fleet.backend.infer(call_of(b"image %d" % number))
            asked = {address for address, triton in fleet.tritons.items() if triton.calls}
            assert asked == {health.address for health in fleet.backend.health()}

    run(test())


def test_one_of_the_share_that_fails_is_replaced_until_it_answers_again():
    async def test() -> None:
        async with fleet_of(20, aperture=4) as fleet:
            first = fleet.backend.health()[0].address
            fleet.tritons[first].away = True
            await wait_until(lambda: fleet.ready() == 4 and len(fleet.backend.health()) == 5)
            fleet.tritons[first].away = False
            await wait_until(lambda: len(fleet.backend.health()) == 4 and fleet.ready() == 4)
            assert fleet.backend.health()[0].address == first

    run(test())


def test_an_admins_load_reaches_every_triton_also_those_that_are_not_used():
    async def test() -> None:
        async with fleet_of(6, aperture=2) as fleet:
            await fleet.backend.load("ensemble_model")
            assert all(("load", "ensemble_model") in triton.done for triton in fleet.tritons.values())

    run(test())


def test_the_share_is_wide_enough_for_what_a_gateway_may_have_in_flight():
    assert subset_size(8, 32) == 8
    assert subset_size(8, 256) == 32
    assert subset_size(0, 256) == 0


def test_shares_of_many_gateways_cover_all_tritons_evenly_and_change_little():
    addresses = [f"10.0.0.{number}:8001" for number in range(64)]
    shares = [set(rendezvous_order(addresses, f"gateway {number}")[:8]) for number in range(200)]
    used = [sum(address in share for share in shares) for address in addresses]
    assert min(used) > 0.4 * 200 * 8 / 64
    assert max(used) < 2 * 200 * 8 / 64
    without = [set(rendezvous_order(addresses[1:], f"gateway {number}")[:8]) for number in range(200)]
    assert all(len(before - after) <= 1 for before, after in zip(shares, without, strict=True))


def test_a_watch_that_ends_is_counted_and_begun_again(monkeypatch):
    monkeypatch.setattr(pool, "RESTART_SECONDS", 0.01)

    class Ends:
        endpoint = type("Endpoint", (), {"address": "10.0.0.1:8001"})
        runs = 0

        async def run(self) -> None:
            self.runs += 1
            if self.runs == 2:
                raise RuntimeError("inside")

    async def test() -> None:
        watch, before = Ends(), metrics.WATCH_FAULTS._value.get()
        task = asyncio.create_task(pool._keep_watching(watch))
        await wait_until(lambda: watch.runs > 3)
        task.cancel()
        assert metrics.WATCH_FAULTS._value.get() >= before + 3

    run(test())
