"""The sequences of images that clients drive by an id, a start and an end in their requests, as Triton's clients do.

The state is in Triton, and the id decides in which one. So the requests of a sequence may come over any connection, to
any process of any gateway that uses the same Tritons. A client has at most `most`, of which idle ones make room.
"""

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gateway.deadline import Deadline
from gateway.errors import GatewayError, Overloaded, SequenceUnknown
from gateway.inference.backend import Backend, SequenceScores, SequenceStep
from gateway.inference.request_spec import RequestSpec

ID_BITS = 63
IDLE_SECONDS = 5.0
"""A sequence without an image for this long may be ended for another one of its client."""
FORGET_SECONDS = 600.0
"""A sequence without an image for this long is not counted: its state is gone (`triton_models/sequence_model`)."""
END_SECONDS = 2.0
"""How long Triton may take to end a sequence."""


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


@dataclass(slots=True)
class _Open:
    """One sequence, as its last request was."""

    spec: RequestSpec
    classes: int = 1
    requests: int = 0
    """Requests in progress."""
    used_at: float = 0.0


class OpenSequences:
    """The sequences that came through this process; the state is in Triton, which has places for all clients together.

    Triton ends a sequence that has been idle for a minute, so a client could otherwise keep every place with few
    requests. The requests of a sequence may come to several processes, and each counts those that it has seen.
    """

    def __init__(self, most: int, now: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._now = now
        self._clients: OrderedDict[str, OrderedDict[int, _Open]] = OrderedDict()
        """By client, and then by the id in Triton; those used last are at the end."""

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

        Raises Overloaded as well, if the client has as many sequences as it may and none of them is idle.
        """
        self._forget_old()
        identity = triton_id(sequence, spec.model_name, key)
        opened = self._clients.setdefault(client, OrderedDict())
        # One that another process has started is in Triton already.
        while sequence.start and identity not in opened and len(opened) >= self._most:
            await self._end_idle(backend, opened)
            opened = self._clients.setdefault(client, opened)  # another request may have dropped the client meanwhile
        each = opened.setdefault(identity, _Open(spec))
        each.requests += 1
        ended = sequence.end
        try:
            return await _add_images(backend, sequence, spec, key, scores)
        except SequenceUnknown:
            ended = True
            raise
        finally:
            each.requests -= 1
            each.spec, each.used_at = spec, self._now()
            each.classes = next((len(values) for values in scores if values is not None), each.classes)
            if identity in opened:
                opened.move_to_end(identity)
            if ended:
                opened.pop(identity, None)
            if client in self._clients:
                self._clients.move_to_end(client)

    async def _end_idle(self, backend: Backend, opened: OrderedDict[int, _Open]) -> None:
        """End the client's sequence that has been idle for longest; raises Overloaded if there is none."""
        idle_since = self._now() - IDLE_SECONDS
        identity = next((id_ for id_, each in opened.items() if not each.requests and each.used_at <= idle_since), None)
        if identity is None:
            raise Overloaded(
                f"This client has {self._most:,} sequences, the maximum, and each had an image in the last "
                f"{IDLE_SECONDS:g} s: end one with 'sequence_end', or try again later.",
                limit="max_sequences",
                value=self._most,
            )
        each = opened.pop(identity)
        spec, scores = each.spec, np.zeros(each.classes, np.float32)
        deadline = Deadline.after(END_SECONDS)
        step = SequenceStep("", identity, scores, False, True, {}, deadline, spec.request_id)  # noqa: FBT003
        with suppress(GatewayError):  # otherwise Triton's idle timeout ends it
            await backend.add_to_sequence(spec.model_name, spec.model_version, step)

    def _forget_old(self) -> None:
        """Drop the sequences that have no state any more, and the clients without a sequence."""
        old = self._now() - FORGET_SECONDS
        while self._clients:
            client, opened = next(iter(self._clients.items()))
            while opened and not (first := next(iter(opened.values()))).requests and first.used_at < old:
                opened.popitem(last=False)
            if opened:
                return
            del self._clients[client]
