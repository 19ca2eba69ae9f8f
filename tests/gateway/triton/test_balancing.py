"""Calls go to the less loaded of two random replicas."""

import random
from collections import Counter
from dataclasses import dataclass, field

from gateway.triton.balancing import HALF_LIFE_SECONDS, Load, power_of_two_choice


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


CLOCK = Clock()


@dataclass
class FakeReplica:
    name: str
    load: Load = field(default_factory=lambda: Load(CLOCK))


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


def test_latency_of_a_replica_decays():
    load = Load(CLOCK)
    load.observe(1.0)
    assert load.latency_seconds(0.1) == 1.0
    CLOCK.now += HALF_LIFE_SECONDS
    assert abs(load.latency_seconds(0.0) - 0.5) < 1e-9


def test_slow_replica_is_detected_within_a_few_calls():
    load = Load(CLOCK)
    load.observe(0.1)
    for _ in range(20):
        load.observe(0.5)
    assert load.latency_seconds(0.1) > 0.4


def test_single_replica_is_chosen():
    replica = FakeReplica("only")
    assert power_of_two_choice([replica], random.Random(0)) is replica
