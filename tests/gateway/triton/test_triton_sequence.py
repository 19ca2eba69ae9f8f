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


class Health:
    def __init__(self) -> None:
        self.dead: list[str] = []

    def process_died(self, model: str) -> None:
        self.dead.append(model)


class Place:
    """What a sequence sees of a Member."""

    def __init__(self, address: str) -> None:
        self.endpoint = FakeEndpoint(address, FakeTriton())
        self.health, self.load, self.address = Health(), Load(), address

    @property
    def triton(self) -> FakeTriton:
        return self.endpoint.triton


@pytest.fixture
def places() -> list[Place]:
    return [Place("a:1"), Place("b:1")]


@pytest.fixture
def sequence(places) -> TritonSequence:
    def ready(tried):
        return [place for place in places if place.address not in tried and not place.triton.away]

    return TritonSequence("sequence_model", ready, random.Random(0))


def add(sequence: TritonSequence, times: int = 1) -> list[tuple[int, bool]]:
    async def run() -> list[tuple[int, bool]]:
        told = [await sequence.add(SCORES, {}, Deadline.after(60), "id") for _ in range(times)]
        return [(each.frames, each.restarted) for each in told]

    return asyncio.run(run())


def at(places: list[Place], sequence: TritonSequence) -> Place:
    return next(place for place in places if place.address == sequence.address)


def test_sequence_stays_on_one_triton(places, sequence):
    assert add(sequence, 5) == [(number, False) for number in range(1, 6)]
    assert sorted(len(place.triton.sequences) for place in places) == [0, 1]


def test_streams_are_balanced_by_their_number(places):
    def begun() -> TritonSequence:
        sequence = TritonSequence("sequence_model", lambda tried: places, random.Random(0))
        add(sequence)
        return sequence

    places[0].load.observe(0.001)  # which would have every call, as long as none is in flight
    places[1].load.observe(0.1)
    sequences = [begun() for _ in range(6)]
    assert [place.load.sequences for place in places] == [3, 3]
    for sequence in sequences:
        if sequence.address == "b:1":
            asyncio.run(sequence.close())
    assert [place.load.sequences for place in places] == [3, 0]
    assert {begun().address for _ in range(3)} == {"b:1"}


def test_sequence_restarts_on_another_triton_and_reports_it_once(places, sequence):
    add(sequence, 3)
    first = at(places, sequence)
    first.triton.away = True
    assert add(sequence, 2) == [(1, True), (2, False)]
    assert at(places, sequence) is not first


def test_sequence_with_lost_state_restarts_on_the_same_triton(places, sequence):
    add(sequence, 3)
    first = at(places, sequence)
    first.triton.sequences.clear()  # idle for too long, or the model was reloaded
    assert add(sequence) == [(1, True)]
    assert at(places, sequence) is first


def test_dead_stateful_process_is_reported_and_left(places, sequence):
    add(sequence)
    first = at(places, sequence)
    first.triton.dead.add("sequence_model")
    assert add(sequence) == [(1, True)]
    assert first.health.dead == ["sequence_model"]
    assert at(places, sequence) is not first


def test_next_frame_restarts_the_sequence_without_another_triton(places, sequence):
    del places[1]
    add(sequence, 2)
    places[0].triton.dead.add("sequence_model")
    with pytest.raises(StubDied):
        add(sequence)
    places[0].triton.dead.clear()
    assert add(sequence) == [(1, True)]


def test_sequence_without_a_triton_raises(places, sequence):
    places.clear()
    with pytest.raises(ModelUnavailable):
        add(sequence)


def test_close_ends_the_sequence_and_ignores_errors(places, sequence):
    asyncio.run(sequence.close())  # before the first frame
    add(sequence)
    place = at(places, sequence)
    asyncio.run(sequence.close())
    assert place.triton.sequences == {}
    add(sequence)
    at(places, sequence).triton.away = True
    asyncio.run(sequence.close())
