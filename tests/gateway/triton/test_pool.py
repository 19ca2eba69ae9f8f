"""Which Triton a call goes to: of a subset of many addresses, the less loaded of two, or one that it has to itself."""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from gateway import metrics
from gateway.deadline import Deadline
from gateway.triton import pool
from gateway.triton.addresses import Addresses
from gateway.triton.balancing import power_of_two_choice, rendezvous_order, subset_size
from gateway.triton.replica import HALF_LIFE_SECONDS, CallGate, TritonLoad
from tests.doubles.clock import Clock
from tests.gateway.triton.fleet import call_of, fleet_of, wait_until


async def test_gateway_uses_its_subset_of_many_tritons_and_loads_models_on_all():
    async with fleet_of(20, aperture=4) as fleet:
        assert len(fleet.backend.health()) == 4
        for number in range(40):
            await fleet.backend.infer(call_of(b"image %d" % number))
        called = {address for address, triton in fleet.tritons.items() if triton.calls}
        assert called == {health.address for health in fleet.backend.health()}
        await fleet.backend.load("ensemble_model")
        assert all(("load", "ensemble_model") in triton.done for triton in fleet.tritons.values())


async def test_failed_replica_is_replaced_until_it_recovers():
    async with fleet_of(20, aperture=4) as fleet:
        first = fleet.backend.health()[0].address
        fleet.tritons[first].away = True
        await wait_until(lambda: fleet.ready() == 4 and len(fleet.backend.health()) == 5)
        fleet.tritons[first].away = False
        await wait_until(lambda: len(fleet.backend.health()) == 4 and fleet.ready() == 4)
        assert fleet.backend.health()[0].address == first


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


ONE, TWO = "10.0.0.1:8001", "10.0.0.2:8001"
CLOCK = Clock()


class Dns:
    """Gives its answers one after another, and repeats the last; an exception is raised."""

    def __init__(self, *answers: Sequence[str] | OSError) -> None:
        self.answers = list(answers)

    async def __call__(self, host: str, port: int) -> list[str]:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, OSError):
            raise answer
        return list(answer)


BOTH = [ONE, TWO]


@pytest.mark.parametrize(
    ("answers", "seen"),
    [
        ([BOTH, OSError("server failure")], [BOTH] * 5),
        ([BOTH, []], [BOTH] * 4),
        ([[ONE], TimeoutError()], [[ONE]] * 3),
        ([BOTH, [ONE], BOTH], [BOTH] * 3),  # an address is removed after two lookups without it
        ([BOTH, [ONE], [ONE]], [BOTH, BOTH, [ONE]]),
        ([[ONE], BOTH], [[ONE], BOTH]),
        ([OSError("no such name"), [ONE]], [["triton:8001"], [ONE]]),
    ],
    ids=["failure", "empty", "slow", "once without", "twice without", "new", "unresolved"],
)
async def test_addresses_follow_the_lookups(answers, seen):
    addresses, before = Addresses(["triton:8001"], Dns(*answers)), metrics.DNS_FAILURES._value.get()
    assert [await addresses.current() for _ in seen] == seen
    if answers[0] == BOTH and isinstance(answers[1], OSError):
        assert metrics.DNS_FAILURES._value.get() == before + len(seen) - 1


async def test_ip_address_is_not_looked_up():
    addresses = Addresses(["127.0.0.1:8001", "[::1]:8001"], Dns(OSError("looked up")))
    assert await addresses.current() == ["127.0.0.1:8001", "[::1]:8001"]


async def test_tritons_stay_in_use_while_dns_fails():
    async with fleet_of(3) as fleet:
        addresses = fleet.addresses
        fleet.addresses = []
        failures = metrics.DNS_FAILURES._value.get()
        await wait_until(lambda: metrics.DNS_FAILURES._value.get() > failures + 5)
        assert len(fleet.backend.health()) == 3
        assert not any(endpoint.closed for endpoint in fleet.endpoints)
        fleet.addresses = addresses[:1]
        await wait_until(lambda: len(fleet.backend.health()) == 1)


@dataclass
class FakeReplica:
    name: str
    load: TritonLoad = field(default_factory=lambda: TritonLoad(CLOCK))


def test_replica_with_fewer_images_in_flight_is_chosen():
    busy, idle = FakeReplica("busy"), FakeReplica("idle")
    busy.load.images = 4
    assert all(power_of_two_choice([busy, idle], random.Random(seed)) is idle for seed in range(50))


def test_cost_is_images_in_flight_times_latency():
    slow, quick = FakeReplica("slow"), FakeReplica("quick")
    slow.load.observe(0.5)
    quick.load.observe(0.1)
    quick.load.images = 3
    assert power_of_two_choice([slow, quick], random.Random(0)) is quick
    quick.load.images = 6
    assert power_of_two_choice([slow, quick], random.Random(0)) is slow


def test_new_replica_gets_its_share_at_once():
    replicas = [FakeReplica(str(number)) for number in range(4)]
    for replica in replicas[:3]:
        replica.load.observe(0.1)
    generator = random.Random(0)
    taken = Counter(power_of_two_choice(replicas, generator).name for _ in range(2_000))
    assert taken["3"] > 300


def test_latency_of_a_replica_rises_within_a_few_calls_and_decays():
    load = TritonLoad(CLOCK)
    load.observe(0.1)
    for _ in range(20):
        load.observe(0.5)
    assert load.latency_seconds(0.1) > 0.4
    load = TritonLoad(CLOCK)
    load.observe(1.0)
    assert load.latency_seconds(0.1) == 1.0
    CLOCK.seconds += HALF_LIFE_SECONDS
    assert abs(load.latency_seconds(0.0) - 0.5) < 1e-9
