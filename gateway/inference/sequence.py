"""The interface of a stateful model: the scores of one frame in, the scores of the sequence so far out."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gateway.deadline import Deadline

Parameters = Mapping[str, str | int | float]
"""Parameters of the stateful model, by name, sent with each frame."""


@dataclass(frozen=True, slots=True)
class SequenceStep:
    """One request of a sequence to a stateful model: a frame's scores, fp32 [classes], or the end of the sequence."""

    model_name: str
    sequence_id: int
    scores: NDArray[np.float32]
    start: bool
    end: bool
    parameters: Parameters
    deadline: Deadline
    request_id: str


@dataclass(frozen=True, slots=True)
class SequenceScores:
    """The scores of a sequence so far."""

    scores: NDArray[np.float32]
    """fp32 [classes]."""
    frames: int
    """The number of frames so far."""
    restarted: bool = False
    """Whether the sequence begins with this frame, since the server that had the earlier ones has failed."""


class FrameSequence(Protocol):
    """The frames of one stream, in order; one call at a time. Every method raises errors of gateway.errors only."""

    async def add(
        self, scores: NDArray[np.float32], parameters: Parameters, deadline: Deadline, request_id: str
    ) -> SequenceScores:
        """Add the next frame's scores, fp32 [classes]; raises what `Backend.infer` raises."""
        ...

    async def close(self) -> None:
        """End the sequence and release its state; raises nothing."""
        ...
