"""The sequences of images that clients drive by an id, a start and an end in their requests, as Triton's clients do.

The state is in Triton, and the id decides in which one. So the requests of a sequence may come over any connection, to
any process of any gateway that uses the same Tritons. A client has at most `most`.
"""

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gateway.deadline import Deadline
from gateway.errors import Overloaded, SequenceUnknown
from gateway.inference.backend import Backend, SequenceScores, SequenceStep
from gateway.inference.request_spec import RequestSpec

ID_BITS = 63
FORGET_SECONDS = 60.0
"""A sequence without an image for this long is not counted: its state is gone (`triton_models/sequence_model`)."""


@dataclass(frozen=True, slots=True)
class ClientSequence:
    """The sequence of a request: the client's id, and whether it starts before or ends after its images."""

    id: int | str
    start: bool = False
    end: bool = False


def triton_id(sequence: ClientSequence, model_name: str, key: str) -> int:
    """The id for Triton: sequences of other API keys and models are others, even with the same id."""
    text = f"{key}\0{model_name}\0{type(sequence.id).__name__}\0{sequence.id}"
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> (64 - ID_BITS) | 1


async def _add_images(
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
        request = SequenceStep("", identity, values, start, end, {}, deadline, spec.request_id)
        return await backend.add_to_sequence(spec.model_name, spec.model_version, request)

    results: list[SequenceScores | None] = []
    for values in scores:
        results.append(None if values is None else await step(values))
        start = start and values is None
    if sequence.end:
        # The stateful model counts no image with the end (docs/adr/0017): it is a request of its own.
        await step(np.zeros_like(next(values for values in scores if values is not None)), end=True)
    return results


class OpenSequences:
    """The sequences that came through this process; the state is in Triton, which has places for all clients together.

    A client could otherwise keep every place with few requests. The requests of a sequence may come to several
    processes, and each counts those that it has seen.
    """

    def __init__(self, most: int, now: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._now = now
        self._clients: OrderedDict[str, OrderedDict[int, float]] = OrderedDict()
        """When each sequence was used last, by client, and then by the id in Triton; those used last are at the end."""

    async def add_images(
        self,
        backend: Backend,
        client: str,
        sequence: ClientSequence,
        spec: RequestSpec,
        key: str,
        scores: Sequence[NDArray[np.float32] | None],
    ) -> list[SequenceScores | None]:
        """Add the scores of a request's images; see `_add_images`.

        Raises Overloaded as well, if the client has as many sequences as it may.
        """
        self._forget_old()
        identity = triton_id(sequence, spec.model_name, key)
        opened = self._clients.get(client, OrderedDict())
        # One that another process has started is in Triton already.
        if sequence.start and identity not in opened and len(opened) >= self._most:
            raise Overloaded(
                f"This client has {self._most:,} sequences, the maximum: end one with 'sequence_end', or try again "
                f"once one has had no image for {FORGET_SECONDS:g} s.",
                limit="max_sequences",
                value=self._most,
            )
        self._use(client, identity)
        try:
            states = await _add_images(backend, sequence, spec, key, scores)
        except SequenceUnknown:
            self._end(client, identity)
            raise
        if sequence.end:
            self._end(client, identity)
        else:
            self._use(client, identity)
        return states

    def _use(self, client: str, identity: int) -> None:
        opened = self._clients.setdefault(client, OrderedDict())
        opened[identity] = self._now()
        opened.move_to_end(identity)
        self._clients.move_to_end(client)

    def _end(self, client: str, identity: int) -> None:
        opened = self._clients.get(client, OrderedDict())
        opened.pop(identity, None)
        if not opened:
            self._clients.pop(client, None)

    def _forget_old(self) -> None:
        """Drop the sequences that have no state any more, and the clients without a sequence."""
        old = self._now() - FORGET_SECONDS
        while self._clients:
            client, opened = next(iter(self._clients.items()))
            while opened and next(iter(opened.values())) < old:
                opened.popitem(last=False)
            if opened:
                return
            del self._clients[client]
