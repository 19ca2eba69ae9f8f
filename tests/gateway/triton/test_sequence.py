"""A stream's sequence stays on one Triton, restarts when its state is lost, and mixes with no other."""

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest

from gateway.timing import Deadline
from gateway.triton.client import StubDied, TritonEndpoint
from gateway.triton.health.state import ExpectedModels, HealthState, Schedule
from gateway.triton.sequence import TritonSequence
from tests.doubles.triton import FakeEndpoint, FakeTriton

SCORES = np.array([0.25, 0.75], np.float32)


class FakeReplica:
    """The attributes of a Replica that a sequence uses."""

    def __init__(self, endpoint: TritonEndpoint) -> None:
        self.endpoint, self.address, self.images, self.sequences = endpoint, endpoint.address, 0, 0
        self.dead: list[str] = []
        self.health = SimpleNamespace(process_died=lambda model, _: self.dead.append(model))

    @property
    def triton(self) -> FakeTriton:
        assert isinstance(self.endpoint, FakeEndpoint)
        return self.endpoint.triton

    def sequence(self) -> TritonSequence:
        return TritonSequence("sequence_model", lambda _: [self], lambda: [self])


@pytest.fixture
def replicas() -> list[FakeReplica]:
    return [FakeReplica(FakeEndpoint(address)) for address in ("a:1", "b:1")]


@pytest.fixture
def sequence(replicas) -> TritonSequence:
    def ready(tried):
        return [replica for replica in replicas if replica.address not in tried and not replica.triton.away]

    return TritonSequence("sequence_model", ready, lambda: replicas)


async def add(sequence: TritonSequence, times: int = 1) -> list[tuple[int, bool]]:
    answers = [await sequence.add(SCORES, {}, Deadline.after(60), "id") for _ in range(times)]
    return [(each.frames, each.restarted) for each in answers]


def at(replicas: list[FakeReplica], sequence: TritonSequence) -> FakeReplica:
    return next(replica for replica in replicas if replica.address == sequence.address)


async def test_sequence_stays_on_one_triton(replicas, sequence):
    assert await add(sequence, 5) == [(number, False) for number in range(1, 6)]
    assert sorted(len(replica.triton.sequences) for replica in replicas) == [0, 1]


async def test_streams_are_balanced_by_their_number(replicas):
    async def begun() -> TritonSequence:
        sequence = TritonSequence("sequence_model", lambda _: replicas, lambda: replicas)
        await add(sequence)
        return sequence

    replicas[1].images = 9  # by its images alone it would get no call
    sequences = [await begun() for _ in range(6)]
    assert [replica.sequences for replica in replicas] == [3, 3]
    for sequence in sequences:
        if sequence.address == "b:1":
            await sequence.close()
    assert [replica.sequences for replica in replicas] == [3, 0]
    assert {(await begun()).address for _ in range(3)} == {"b:1"}


@pytest.mark.parametrize(
    ("fault", "stays", "dead"),
    [
        (lambda triton: setattr(triton, "away", True), False, []),
        (lambda triton: triton.sequences.clear(), True, []),  # idle for too long, or the model was reloaded
        (lambda triton: triton.dead.add("sequence_model"), False, ["sequence_model"]),
    ],
    ids=["away", "lost state", "dead process"],
)
async def test_sequence_restarts_after_a_fault_and_reports_it_once(replicas, sequence, fault, stays, dead):
    await add(sequence, 3)
    first = at(replicas, sequence)
    fault(first.triton)
    assert await add(sequence, 2) == [(1, True), (2, False)]
    assert (at(replicas, sequence) is first, first.dead) == (stays, dead)


def test_frame_that_was_sent_before_a_reload_starts_no_other_one():
    """Triton answers for a dead process a second or two later; a second reload would end all sequences again."""
    state = HealthState("a:1", ExpectedModels("ensemble_model"), Schedule(1.0, 1.0))
    state.healing, state.recovered_at = "idle", 100.0
    state.process_died("sequence_model", 99.0)
    assert not state.dead
    state.process_died("sequence_model", 101.0)
    assert state.dead


async def test_next_frame_restarts_the_sequence_without_another_triton(replicas, sequence):
    del replicas[1]
    await add(sequence, 2)
    replicas[0].triton.dead.add("sequence_model")
    with pytest.raises(StubDied):
        await add(sequence)
    replicas[0].triton.dead.clear()
    assert await add(sequence) == [(1, True)]


async def test_close_ends_the_sequence_and_ignores_errors(replicas, sequence):
    await sequence.close()  # before the first frame
    await add(sequence)
    replica = at(replicas, sequence)
    await sequence.close()
    assert replica.triton.sequences == {}
    await add(sequence)
    at(replicas, sequence).triton.away = True
    await sequence.close()


CLASSES, FRAMES, STREAMS = 8, 5, 4


async def test_frames_of_two_gateways_stay_in_their_sequences(light_triton):
    gateways = [FakeReplica(TritonEndpoint(light_triton.url)) for _ in range(2)]
    sequences = [gateway.sequence() for gateway in gateways for _ in range(STREAMS)]
    for frame in range(1, FRAMES + 1):
        given = await asyncio.gather(
            *(
                sequence.add(np.eye(CLASSES, dtype=np.float32)[number], {}, Deadline.after(60), "test")
                for number, sequence in enumerate(sequences)
            )
        )
        assert [each.frames for each in given] == [frame] * len(sequences)
        assert [int(each.scores.argmax()) for each in given] == list(range(len(sequences)))
        assert all(np.count_nonzero(each.scores) == 1 for each in given), "no other sequence's scores are mixed in"
    for sequence in sequences:
        await sequence.close()
    for gateway in gateways:
        await gateway.endpoint.close()
