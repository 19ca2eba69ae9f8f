"""What a request asks of the service, and what it gets for each file."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from gateway.errors import GatewayError, InvalidParameter
from gateway.inference.backend import Vectors
from gateway.inference.prediction import NO_PREDICTIONS, Prediction, Predictions
from gateway.inference.request_stats import RequestStats
from gateway.inference.selection import Selection
from gateway.ingest.frames import Wanted

MIN_TIMEOUT_SECONDS = 0.001
"""Shortest deadline that a client may ask for; Triton's queue policy counts microseconds, and networks take longer."""


def timeout_within(seconds: float | None, *, default: float, most: float) -> float:
    """The seconds that a client asks for, or the default; raises InvalidParameter outside of the limits."""
    if seconds is None:
        return default
    if not seconds >= MIN_TIMEOUT_SECONDS:
        raise InvalidParameter(
            f"'timeout': must be at least {MIN_TIMEOUT_SECONDS:g} s.",
            limit="min_timeout_seconds",
            value=MIN_TIMEOUT_SECONDS,
        )
    if seconds > most:
        raise InvalidParameter(f"'timeout': must be at most {most:g} s.", limit="max_timeout_seconds", value=most)
    return seconds


@dataclass(frozen=True, slots=True)
class RequestSpec:
    """What a request asks for. `model_version` "" is the one in use; `tally` says what becomes of it."""

    model_name: str
    model_version: str
    selection: Selection | None
    """What each image's result contains; None for the scores of every class, without labels."""
    timeout_seconds: float
    request_id: str
    vectors: Vectors = Vectors.NONE
    """Whether each image's result has its vector as well."""
    split: bool = False
    """Whether the version is a share that the operator sends there, not the client's wish."""
    frames: Wanted | None = None
    """Which frames of animated files have an answer of their own; None for none, as if each were its first frame."""
    tally: RequestStats = field(default_factory=RequestStats)


@dataclass(frozen=True, slots=True)
class FrameResult:
    """The answer for one frame: its number in the file, and when it is shown, in seconds from the first one.

    With `seconds` None it stands for all that could not be read from there on.
    """

    index: int
    seconds: float | None
    predictions: Sequence[Prediction] = NO_PREDICTIONS
    error: GatewayError | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """The answer for one uploaded file: predictions, or an error. Width and height are upright pixels, where known."""

    index: int
    filename: str
    width: int | None = None
    height: int | None = None
    predictions: Sequence[Prediction] = NO_PREDICTIONS
    scores: NDArray[np.float32] | None = field(default=None, compare=False)
    """In place of predictions, where the query has no selection: fp32 [classes], by class id."""
    vector: NDArray[np.float32] | None = field(default=None, compare=False)
    """fp32 [size], where the query wants it and the model gives one."""
    error: GatewayError | None = None
    model_version: str | None = None
    multi_label: bool = False
    frames: tuple[FrameResult, ...] | None = None
    """Of a query for frames; then `predictions` are the first one's that has an answer."""

    @property
    def extent(self) -> int:
        """How much there is to send, in predictions; a number of a vector is a tenth of one."""
        return self.prediction_count + (0 if self.vector is None else len(self.vector) // 10)

    @property
    def top_score(self) -> float | None:
        """The highest score of what is answered; None where that is nothing."""
        if self.scores is not None:
            return float(self.scores.max(initial=0.0))
        return max(Predictions.of(self.predictions).scores, default=None)

    @property
    def images(self) -> "Sequence[Result]":
        """What counts as images: each of the frames, or the file."""
        if not self.frames:
            return (self,)
        return [replace(self, predictions=each.predictions, error=each.error, frames=None) for each in self.frames]

    @property
    def prediction_count(self) -> int:
        """How many predictions it holds."""
        return len(self.predictions) + sum(len(frame.predictions) for frame in self.frames or ())
