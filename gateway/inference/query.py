"""What a request asks of the service, and what it gets for each file."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gateway.errors import GatewayError, InvalidParameter
from gateway.inference.backend import Vectors
from gateway.inference.prediction import NO_PREDICTIONS, Prediction, Predictions
from gateway.inference.selection import Selection
from gateway.inference.tally import Tally


def timeout_within(seconds: float | None, *, default: float, most: float) -> float:
    """The seconds that a client asks for, or the default; raises InvalidParameter beyond the limit."""
    if seconds is None:
        return default
    if seconds > most:
        raise InvalidParameter(f"'timeout': must be at most {most:g} s.", limit="max_timeout_seconds", value=most)
    return seconds


@dataclass(frozen=True, slots=True)
class Query:
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
    tally: Tally = field(default_factory=Tally)


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

    @property
    def extent(self) -> int:
        """How much there is to send, in predictions; a number of a vector is a tenth of one."""
        return len(self.predictions) + (0 if self.vector is None else len(self.vector) // 10)

    @property
    def top_score(self) -> float | None:
        """The highest score of what is answered; None where that is nothing."""
        if self.scores is not None:
            return float(self.scores.max(initial=0.0))
        return max(Predictions.of(self.predictions).scores, default=None)
