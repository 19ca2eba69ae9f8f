"""What a stream asks of a stateful model: one frame's scores in, those of the sequence so far out."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gateway.deadline import Deadline

Parameters = Mapping[str, str | int | float]
"""What the stateful model is asked for with a frame, by name."""


@dataclass(frozen=True, slots=True)
class SequenceStep:
    """One request of a sequence to a stateful model: a frame's scores, fp32 [classes], or with `end` the last word."""

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
    """What a sequence shows so far."""

    scores: NDArray[np.float32]
    """fp32 [classes]."""
    frames: int
    """Of how many frames that is."""
    restarted: bool = False
    """Whether the frames before this one were forgotten, since the server that kept them is gone."""


class FrameSequence(Protocol):
    """The frames of one stream, in order; one call at a time. Every method raises errors of gateway.errors only."""

    async def add(
        self, scores: NDArray[np.float32], parameters: Parameters, deadline: Deadline, request_id: str
    ) -> SequenceScores:
        """Take in the next frame's scores, fp32 [classes]; raises what `Backend.infer` raises."""
        ...

    async def close(self) -> None:
        """Give up the state, where a server keeps any; raises nothing."""
        ...
