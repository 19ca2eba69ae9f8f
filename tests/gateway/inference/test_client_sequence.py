"""Sequences of clients: the steps in Triton, and an id of their own for each key and model."""

import numpy as np
import pytest

from gateway.errors import SequenceUnknown
from gateway.inference.client_sequence import ID_BITS, ClientSequence, add_images, triton_id
from gateway.inference.request_spec import RequestSpec
from gateway.inference.sequence import SequenceScores, SequenceStep

SPEC = RequestSpec("flowers", "2", None, 10.0, "request")
ONE, TWO = np.array([1.0, 0.0], np.float32), np.array([0.0, 1.0], np.float32)


class Recorder:
    """Records the steps; `known` are the sequences that have begun."""

    def __init__(self) -> None:
        self.steps: list[SequenceStep] = []
        self.known: set[int] = set()

    async def add_to_sequence(self, model_name: str, model_version: str, step: SequenceStep) -> SequenceScores:
        assert (model_name, model_version) == ("flowers", "2")
        self.steps.append(step)
        if step.start:
            self.known.add(step.sequence_id)
        if step.sequence_id not in self.known:
            raise SequenceUnknown
        return SequenceScores(step.scores, len(self.steps))

    @property
    def flags(self) -> list[tuple[bool, bool]]:
        return [(step.start, step.end) for step in self.steps]


async def test_first_image_starts_and_a_step_of_its_own_ends():
    backend = Recorder()
    states = await add_images(backend, ClientSequence(7, start=True, end=True), SPEC, "", [ONE, TWO])
    assert backend.flags == [(True, False), (False, False), (False, True)]
    assert [state.frames for state in states] == [1, 2]
    assert not backend.steps[-1].scores.any()


async def test_failed_image_is_no_part_of_the_sequence():
    backend = Recorder()
    states = await add_images(backend, ClientSequence(7, start=True), SPEC, "", [None, ONE, None])
    assert backend.flags == [(True, False)]
    assert [state is None for state in states] == [True, False, True]


async def test_sequence_continues_over_requests():
    backend = Recorder()
    await add_images(backend, ClientSequence(7, start=True), SPEC, "", [ONE])
    await add_images(backend, ClientSequence(7), SPEC, "", [TWO])
    assert backend.flags == [(True, False), (False, False)]


async def test_sequence_that_has_not_begun_is_unknown():
    with pytest.raises(SequenceUnknown):
        await add_images(Recorder(), ClientSequence(7), SPEC, "", [ONE])


def test_ids_of_keys_models_and_types_differ():
    ids = {
        triton_id(ClientSequence(given), model, key)
        for given in (7, "7", 8)
        for model in ("flowers", "birds")
        for key in ("", "app", "nightly")
    }
    assert len(ids) == 18
    assert all(0 < each < 2**ID_BITS for each in ids)
    assert triton_id(ClientSequence(7), "flowers", "app") == triton_id(ClientSequence(7, end=True), "flowers", "app")
