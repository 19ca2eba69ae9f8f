"""Independent gateways never share a sequence at one Triton."""

import asyncio
import multiprocessing
import random

import numpy as np

from gateway.deadline import Deadline
from gateway.triton.balancing import Load
from gateway.triton.grpc_endpoint import GrpcEndpoint
from gateway.triton.triton_sequence import ID_BITS, TritonSequence
from tests.gateway.triton.fake_endpoint import FakeEndpoint

CLASSES, FRAMES, STREAMS = 8, 5, 4


class Gateway:
    """A connection of its own to one Triton, and the sequences over it."""

    def __init__(self, endpoint: GrpcEndpoint | FakeEndpoint) -> None:
        self.endpoint, self.load, self.address = endpoint, Load(), endpoint.address

    def sequence(self) -> TritonSequence:
        # The same numbers in every process, as with a generator that was copied by a fork.
        return TritonSequence("sequence_model", lambda _: [self], random.Random(0))


async def test_frames_of_two_gateways_stay_in_their_sequences(light_triton):
    gateways = [Gateway(GrpcEndpoint(light_triton.url)) for _ in range(2)]
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


def ids_of_a_worker(count: int) -> set[int]:
    async def begin() -> set[int]:
        endpoint = FakeEndpoint("10.0.0.1:8001")
        gateway = Gateway(endpoint)
        for _ in range(count):
            await gateway.sequence().add(np.ones(2, np.float32), {}, Deadline.after(60), "test")
        return set(endpoint.triton.sequences)

    return asyncio.run(begin())


def test_forked_workers_draw_different_ids():
    """Of 10,000 sequences at once the chance that two share one of 2 ** 62 ids is 1 in 90 billion."""
    with multiprocessing.get_context("fork").Pool(2) as workers:
        first, second = workers.map(ids_of_a_worker, [200, 200], chunksize=1)
    assert len(first | second) == 400
    assert all(0 < number < 2**ID_BITS for number in first | second)
