"""Sequences of images, which clients drive by an id, a start and an end in their requests, as Triton's clients do.

The state is in a Triton server, which the id selects. So the requests of a sequence may come over any connection, to
any process of any gateway that uses the same Triton servers.
"""

import hashlib
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from gateway.errors import Overloaded, SequenceUnknown
from gateway.inference.backend import Backend, SequenceScores, SequenceStep
from gateway.inference.request_spec import RequestSpec
from gateway.plugins.oip.members import InferenceParameters
from gateway.timing import Deadline
from gateway.values.clients import client_of

ID_BITS = 63
FORGET_SECONDS = 60.0
"""A sequence without an image for this long is not counted: its state is gone (`triton_models/sequence_model`)."""


def triton_id(sequence_id: int | str, model_name: str, key: str) -> int:
    """The id for Triton: sequences of other API keys and models are others, even with the same id."""
    text = f"{key}\0{model_name}\0{type(sequence_id).__name__}\0{sequence_id}"
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> (64 - ID_BITS) | 1


class OpenSequences:
    """The sequences that came through this process: at most `most` for each client.

    The state is in Triton, which has places for all clients together: without this limit, a client could keep every
    place with few requests. The requests of a sequence may come to several processes, and each counts the ones it saw.
    """

    def __init__(self, most: int, now: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._now = now
        self._used_at: OrderedDict[tuple[str, int], float] = OrderedDict()
        """When each sequence was used last, by client and id in Triton; those used last are at the end."""
        self._counts: Counter[str] = Counter()

    async def add_images(
        self,
        backend: Backend,
        sequence: InferenceParameters,
        spec: RequestSpec,
        scores: Sequence[NDArray[np.float32] | None],
    ) -> list[SequenceScores | None]:
        """Add the scores of a request's images, each fp32 [classes], in their order; a failed image (None) is left out.

        Returns the state of the sequence after each image.

        Raises SequenceUnknown if the sequence has no state and does not start, Overloaded if it starts and the client
        has as many as it may, ModelNotFound without a stateful model, and the errors of Backend.infer. The sequence
        then includes the images before the one that failed.
        """
        self._forget_old()
        client = client_of(spec.key, spec.address)
        identity = triton_id(sequence.sequence_id, spec.model_name, spec.key)
        # One that another process has started is in Triton already.
        is_new = sequence.sequence_start and (client, identity) not in self._used_at
        if is_new and self._counts[client] >= self._most:
            raise Overloaded(
                f"This client has {self._most:,} sequences, the maximum: end one with 'sequence_end', or try again "
                f"once one has had no image for {FORGET_SECONDS:g} s.",
                limit="max_sequences",
                value=self._most,
            )
        self._use(client, identity)
        deadline = Deadline.after(spec.timeout_seconds)
        start = sequence.sequence_start

        async def step(values: NDArray[np.float32], *, end: bool = False) -> SequenceScores:
            request = SequenceStep("", identity, values, {}, deadline, spec.request_id, start=start, end=end)
            return await backend.add_to_sequence(spec.model_name, spec.model_version, request)

        states: list[SequenceScores | None] = []
        try:
            for values in scores:
                states.append(None if values is None else await step(values))
                start = start and values is None
            if sequence.sequence_end:
                # The stateful model counts no image with the end (docs/adr/0017): the end is a separate request.
                await step(np.zeros_like(next(values for values in scores if values is not None)), end=True)
        except SequenceUnknown:
            self._end(client, identity)
            raise
        if sequence.sequence_end:
            self._end(client, identity)
        else:
            self._use(client, identity)
        return states

    def _use(self, client: str, identity: int) -> None:
        self._counts[client] += (client, identity) not in self._used_at
        self._used_at[client, identity] = self._now()
        self._used_at.move_to_end((client, identity))

    def _end(self, client: str, identity: int) -> None:
        if self._used_at.pop((client, identity), None) is not None:
            self._counts[client] -= 1
            if not self._counts[client]:
                del self._counts[client]

    def _forget_old(self) -> None:
        """Drop the sequences whose state is gone."""
        old = self._now() - FORGET_SECONDS
        while self._used_at and next(iter(self._used_at.values())) < old:
            self._end(*next(iter(self._used_at)))
