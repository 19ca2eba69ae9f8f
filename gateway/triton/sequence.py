"""A stream's sequence: it stays on one Triton, and restarts on another one if that Triton fails."""

import contextlib
import random
import secrets
import time
from collections.abc import Callable, Collection
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gateway import metrics
from gateway.errors import DeadlineExceeded, GatewayError, InferenceFailed, ModelUnavailable, TritonUnreachable
from gateway.inference.backend import Parameters, SequenceScores, SequenceStep
from gateway.timing import Deadline
from gateway.triton.client import SequenceLost, StubDied
from gateway.triton.replica import Replica

END_SECONDS = 2.0
"""How long Triton may take to end a sequence."""
MAX_ATTEMPTS = 3
ID_BITS = 63
"""Bits of a sequence id: random, so that ids of independent gateways do not collide."""


class TritonSequence:
    """The frames of one stream on the Triton that keeps their state; see gateway.inference.backend.FrameSequence.

    `ready` returns the servers that are ready for the stream's model, except some addresses; a frame is sent again to
    one of them only. While none is ready, one of `candidates` gets the first attempt: see TritonPool.
    """

    def __init__(
        self,
        model_name: str,
        ready: Callable[[Collection[str]], list[Replica]],
        candidates: Callable[[], list[Replica]],
    ) -> None:
        self.model_name = model_name
        self._ready, self._candidates = ready, candidates
        self._replica: Replica | None = None
        self._id = 0
        self._begun = False
        """Whether the last frame was answered; otherwise the next one restarts the sequence."""
        self._frames = 0
        self._size = 1

    @property
    def address(self) -> str | None:
        """The Triton that keeps the state; None before the first frame and after an error."""
        return self._replica.address if self._replica else None

    async def add(
        self, scores: NDArray[np.float32], parameters: Parameters, deadline: Deadline, request_id: str
    ) -> SequenceScores:
        """Add the next frame's scores; see FrameSequence.add.

        The state may or may not include a frame that failed, so the sequence restarts after it.
        """
        tried: list[str] = []
        for attempt in range(MAX_ATTEMPTS):
            replica = self._replica or self._enter(self._choose(tried))
            start, self._size = not self._begun, len(scores)
            step = SequenceStep(self.model_name, self._id, scores, parameters, deadline, request_id, start=start)
            sent_at = time.monotonic()
            self._begun = False  # unless it is answered
            try:
                scores_so_far = await replica.endpoint.infer_sequence(step)
            except SequenceLost:
                pass
            except (TritonUnreachable, ModelUnavailable) as error:
                self._leave()
                tried.append(replica.address)
                if isinstance(error, StubDied):
                    replica.health.process_died(self.model_name, sent_at)
                if attempt + 1 == MAX_ATTEMPTS or not self._ready(tried):
                    raise
            else:
                self._begun = True
                self._frames += 1
                restarted = start and self._frames > 1
                if restarted:
                    metrics.SEQUENCES_RESTARTED.inc()
                return replace(scores_so_far, restarted=restarted)
            if deadline.passed:
                raise DeadlineExceeded
        raise InferenceFailed from ValueError(f"{self.model_name!r} forgets sequences as soon as they have begun")

    async def close(self) -> None:
        """End the sequence, if one is open."""
        replica = self._leave()
        if replica is None:
            return
        scores = np.zeros(self._size, np.float32)
        deadline = Deadline.after(END_SECONDS)
        step = SequenceStep(self.model_name, self._id, scores, {}, deadline, "end", end=True)
        with contextlib.suppress(GatewayError):  # otherwise Triton's idle timeout ends it
            await replica.endpoint.infer_sequence(step)

    def _choose(self, tried: Collection[str]) -> Replica:
        # Streams are long and idle between frames, so they are balanced by their number.
        replicas = self._ready(tried) or self._candidates()
        return min(replicas, key=lambda each: (each.sequences, random.random()))  # noqa: S311  # no secret

    def _enter(self, replica: Replica) -> Replica:
        self._replica, self._id, self._begun = replica, secrets.randbits(ID_BITS) | 1, False
        replica.sequences += 1
        return replica

    def _leave(self) -> Replica | None:
        replica, self._replica = self._replica, None
        if replica is not None:
            replica.sequences -= 1
        return replica
