"""A stream's sequence stays on one Triton, and restarts when its state is lost."""

import asyncio
import random

import numpy as np
import pytest

from gateway.deadline import Deadline
from gateway.errors import ModelUnavailable
from gateway.triton.balancing import Load
from gateway.triton.error_table import StubDied
from gateway.triton.triton_sequence import TritonSequence
from tests.gateway.triton.fake_endpoint import FakeEndpoint, FakeTriton

SCORES = np.array([0.25, 0.75], np.float32)


class FakeHealth:
    def __init__(self) -> None:
        self.dead: list[str] = []

    def process_died(self, model: str) -> None:
        self.dead.append(model)


class FakeReplica:
    """The attributes of a Replica that a sequence uses."""

    def __init__(self, address: str) -> None:
        self.endpoint = FakeEndpoint(address, FakeTriton())
        self.health, self.load, self.address = FakeHealth(), Load(), address

    @property
    def triton(self) -> FakeTriton:
        return self.endpoint.triton


@pytest.fixture
def replicas() -> list[FakeReplica]:
    return [FakeReplica("a:1"), FakeReplica("b:1")]


@pytest.fixture
def sequence(replicas) -> TritonSequence:
    def ready(tried):
        return [replica for replica in replicas if replica.address not in tried and not replica.triton.away]

    return TritonSequence("sequence_model", ready, random.Random(0))


def add(sequence: TritonSequence, times: int = 1) -> list[tuple[int, bool]]:
    async def run() -> list[tuple[int, bool]]:
        answers = [await sequence.add(SCORES, {}, Deadline.after(60), "id") for _ in range(times)]
        return [(each.frames, each.restarted) for each in answers]

    return asyncio.run(run())


def at(replicas: list[FakeReplica], sequence: TritonSequence) -> FakeReplica:
    return next(replica for replica in replicas if replica.address == sequence.address)


def test_sequence_stays_on_one_triton(replicas, sequence):
    assert add(sequence, 5) == [(number, False) for number in range(1, 6)]
    assert sorted(len(replica.triton.sequences) for replica in replicas) == [0, 1]


def test_streams_are_balanced_by_their_number(replicas):
    def begun() -> TritonSequence:
        sequence = TritonSequence("sequence_model", lambda tried: replicas, random.Random(0))
        add(sequence)
        return sequence

    replicas[0].load.observe(0.001)  # its latency alone would give it every call
    replicas[1].load.observe(0.1)
    sequences = [begun() for _ in range(6)]
    assert [replica.load.sequences for replica in replicas] == [3, 3]
    for sequence in sequences:
        if sequence.address == "b:1":
            asyncio.run(sequence.close())
    assert [replica.load.sequences for replica in replicas] == [3, 0]
    assert {begun().address for _ in range(3)} == {"b:1"}


def test_sequence_restarts_on_another_triton_and_reports_it_once(replicas, sequence):
    add(sequence, 3)
    first = at(replicas, sequence)
    first.triton.away = True
    assert add(sequence, 2) == [(1, True), (2, False)]
    assert at(replicas, sequence) is not first


def test_sequence_with_lost_state_restarts_on_the_same_triton(replicas, sequence):
    add(sequence, 3)
    first = at(replicas, sequence)
    first.triton.sequences.clear()  # idle for too long, or the model was reloaded
    assert add(sequence) == [(1, True)]
    assert at(replicas, sequence) is first


def test_dead_stateful_process_is_reported_and_left(replicas, sequence):
    add(sequence)
    first = at(replicas, sequence)
    first.triton.dead.add("sequence_model")
    assert add(sequence) == [(1, True)]
    assert first.health.dead == ["sequence_model"]
    assert at(replicas, sequence) is not first


def test_next_frame_restarts_the_sequence_without_another_triton(replicas, sequence):
    del replicas[1]
    add(sequence, 2)
    replicas[0].triton.dead.add("sequence_model")
    with pytest.raises(StubDied):
        add(sequence)
    replicas[0].triton.dead.clear()
    assert add(sequence) == [(1, True)]


def test_sequence_without_a_triton_raises(replicas, sequence):
    replicas.clear()
    with pytest.raises(ModelUnavailable):
        add(sequence)


def test_close_ends_the_sequence_and_ignores_errors(replicas, sequence):
    asyncio.run(sequence.close())  # before the first frame
    add(sequence)
    replica = at(replicas, sequence)
    asyncio.run(sequence.close())
    assert replica.triton.sequences == {}
    add(sequence)
    at(replicas, sequence).triton.away = True
    asyncio.run(sequence.close())
