"""The sequences that one process counts for each client."""

import numpy as np
import pytest

from gateway.errors import Overloaded
from gateway.inference.request_spec import RequestSpec
from gateway.plugins.oip.members import InferenceParameters
from gateway.plugins.oip.sequences import FORGET_SECONDS, OpenSequences
from tests.doubles.backend import StubBackend

SCORES = [np.ones(2, np.float32)]


@pytest.fixture
def backend() -> StubBackend:
    return StubBackend()


async def add(sequences, backend, number, client="a", *, start=False, end=False):
    spec = RequestSpec("flowers", "", None, 10.0, "request", address=client)
    sequence = InferenceParameters(sequence_id=number, sequence_start=start, sequence_end=end)
    await sequences.add_images(backend, sequence, spec, SCORES)


async def test_sequence_counts_until_it_ends_or_its_state_is_gone(clock, backend):
    sequences = OpenSequences(1, clock)
    await add(sequences, backend, 1, start=True)
    clock.seconds += FORGET_SECONDS
    with pytest.raises(Overloaded):
        await add(sequences, backend, 2, start=True)
    clock.seconds += 0.001
    await add(sequences, backend, 2, start=True)
    await add(sequences, backend, 2, end=True)
    await add(sequences, backend, 3, start=True)


async def test_nothing_is_kept_of_clients_that_are_gone(clock, backend):
    sequences = OpenSequences(2, clock)
    for number in range(100):
        await add(sequences, backend, number, f"{number}", start=True)
    assert len(sequences._counts) == 100
    clock.seconds += FORGET_SECONDS + 1
    await add(sequences, backend, 1, start=True)
    assert list(sequences._counts) == ["address a"]
    await add(sequences, backend, 1, end=True)
    await add(sequences, backend, 1, "b", start=True, end=True)
    assert not sequences._counts
