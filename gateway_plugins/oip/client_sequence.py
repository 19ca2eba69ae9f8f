"""A sequence of images in requests of a client, with an id, a start and an end, as Triton's clients send them.

The gateway keeps nothing of it: the state is in Triton, and the id decides in which one. So the requests of a sequence
may come over any connection, to any process of any gateway that uses the same Tritons.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gateway.deadline import Deadline
from gateway.inference.backend import Backend
from gateway.inference.request_spec import RequestSpec
from gateway.inference.sequence import Parameters, SequenceScores, SequenceStep

ID_BITS = 63


@dataclass(frozen=True, slots=True)
class ClientSequence:
    """The sequence of a request: the id of the client's choice, and whether it starts before or ends after its images.

    `parameters` are those of the stateful model.
    """

    id: int | str
    start: bool = False
    end: bool = False
    parameters: Parameters = field(default_factory=dict)


def triton_id(sequence: ClientSequence, model_name: str, key: str) -> int:
    """The id for Triton: sequences of other API keys and models are others, even with the same id."""
    text = f"{key}\0{model_name}\0{type(sequence.id).__name__}\0{sequence.id}"
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> (64 - ID_BITS) | 1


async def add_images(
    backend: Backend,
    sequence: ClientSequence,
    spec: RequestSpec,
    key: str,
    scores: Sequence[NDArray[np.float32] | None],
) -> list[SequenceScores | None]:
    """Add the scores of a request's images, each fp32 [classes], in their order; a failed image (None) is left out.

    Returns the state of the sequence after each image. `key` is the name of the client's API key, "" without one.

    Raises SequenceUnknown if the sequence has no state and does not start, ModelNotFound without a stateful model, and
    the errors of Backend.infer. The sequence then includes the images before the one that failed.
    """
    identity = triton_id(sequence, spec.model_name, key)
    deadline = Deadline.after(spec.timeout_seconds)
    start = sequence.start

    async def step(values: NDArray[np.float32], *, end: bool = False) -> SequenceScores:
        request = SequenceStep("", identity, values, start, end, sequence.parameters, deadline, spec.request_id)
        return await backend.add_to_sequence(spec.model_name, spec.model_version, request)

    results: list[SequenceScores | None] = []
    for values in scores:
        results.append(None if values is None else await step(values))
        start = start and values is None
    if sequence.end:
        # The stateful model counts no image with the end (docs/adr/0017): it is a request of its own.
        await step(np.zeros_like(next(values for values in scores if values is not None)), end=True)
    return results
