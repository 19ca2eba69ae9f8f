"""The parameters of a request, the version that answers it, and the result of each file."""

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from gateway.errors import GatewayError, InvalidParameter
from gateway.inference.backend import Embeddings
from gateway.inference.explaining import Explanation, ExplanationSpec
from gateway.inference.prediction import NO_PREDICTIONS, Prediction, Predictions
from gateway.inference.prediction_log import ImageRecord
from gateway.inference.request_stats import RequestStats
from gateway.inference.selection import Selection
from gateway.ingest.frames import Wanted
from gateway.tenants.tenant import Charges

MIN_TIMEOUT_SECONDS = 0.001
"""Shortest timeout that a client may request; any network takes longer."""
_HASH_RANGE = 2**64


def timeout_within(seconds: float | None, *, default: float, most: float) -> float:
    """The timeout that a client requests, or the default; raises InvalidParameter outside of the limits."""
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


def version_of(
    splits: Mapping[str, Mapping[str, int]], model_name: str, version: str | None, client: str
) -> tuple[str, bool]:
    """The version that answers, "" for the one in use, and whether the split has chosen it.

    `version` is the one that the client asks for, if any.
    """
    shares = splits.get(model_name) if version is None else None
    return (choose(shares, model_name, client), True) if shares is not None else (version or "", False)


def choose(shares: Mapping[str, int], model_name: str, client: str) -> str:
    """A version by its share of the requests: always the same for one client, random without a client ("").

    A client's position among the shares is a hash, so that every gateway chooses the same version, and a larger share
    moves only the clients that it gains.
    """
    if client:
        digest = hashlib.sha256(f"{model_name}\0{client}".encode()).digest()
        position = int.from_bytes(digest[:8], "big") / _HASH_RANGE
    else:
        position = random.random()  # noqa: S311  # no secret
    rest = position * sum(shares.values())
    for version, share in shares.items():
        rest -= share
        if rest < 0:
            return version
    return list(shares)[-1]  # only by rounding


@dataclass(frozen=True, slots=True)
class Caller:
    """What the prediction log keeps of the client: the name of its API key, and the fields that it chose."""

    key: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)


UNKNOWN_CALLER = Caller()


@dataclass(frozen=True, slots=True)
class RequestSpec:
    """The parameters of a request, and its statistics (`stats`). `model_version` "" is the version in use."""

    model_name: str
    model_version: str
    selection: Selection | None
    """What each image's result contains; None for the scores of every class, without labels."""
    timeout_seconds: float
    request_id: str
    embeddings: Embeddings = Embeddings.NONE
    """Whether each image's result includes its embedding."""
    split: bool = False
    """Whether a split has chosen the version, and not the client."""
    frames: Wanted | None = None
    """Which frames of animated files are classified; None: only the first one, as the image of its file."""
    explanation: ExplanationSpec | None = None
    """What the images are explained by, with the lowest priority; None: they are classified."""
    caller: Caller = UNKNOWN_CALLER
    """Known only if predictions are logged."""
    strict: bool = False
    """Whether a damaged image is an error, even if it can be decoded."""
    stats: RequestStats = field(default_factory=RequestStats)
    charges: Charges | None = None
    """What the images are charged to, if the API key has a quota."""


@dataclass(frozen=True, slots=True)
class FrameResult:
    """The result of one frame: its index in the file, and when it is shown, in seconds from the first one.

    If `seconds` is None, it is the error of all frames from this one on, which could not be read.
    """

    index: int
    seconds: float | None
    predictions: Sequence[Prediction] = NO_PREDICTIONS
    error: GatewayError | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one uploaded file: predictions or an error; width and height in upright pixels, if known."""

    index: int
    filename: str
    width: int | None = None
    height: int | None = None
    predictions: Sequence[Prediction] = NO_PREDICTIONS
    scores: NDArray[np.float32] | None = field(default=None, compare=False)
    """Instead of predictions, if the request has no selection: fp32 [classes], by class id."""
    embedding: NDArray[np.float32] | None = field(default=None, compare=False)
    """The embedding, fp32 [size], if the request asks for it and the model has one."""
    error: GatewayError | None = None
    model_version: str | None = None
    multi_label: bool = False
    frames: tuple[FrameResult, ...] | None = None
    """In a request for frames; `predictions` are then those of the first frame without an error."""
    explanation: Explanation | None = field(default=None, compare=False)
    """Instead of predictions, in a request for explanations."""
    record: ImageRecord | None = field(default=None, compare=False, repr=False)
    """Until the result is reported, if predictions are logged."""
    damaged: bool = False
    """Whether the image was decoded although its data is damaged: some of its pixels are wrong."""

    @property
    def extent(self) -> int:
        """Size of the response in predictions; ten numbers of an embedding count as one."""
        return self.prediction_count + (0 if self.embedding is None else len(self.embedding) // 10)

    @property
    def top_score(self) -> float | None:
        """The highest score of the result; None if it has none."""
        if self.scores is not None:
            return float(self.scores.max(initial=0.0))
        return max(Predictions.of(self.predictions).scores, default=None)

    @property
    def images(self) -> "Sequence[Result]":
        """The results that count as images: those of the frames, or that of the file."""
        if not self.frames:
            return (self,)
        return [replace(self, predictions=each.predictions, error=each.error, frames=None) for each in self.frames]

    @property
    def prediction_count(self) -> int:
        """The number of predictions, including those of the frames."""
        count = len(self.predictions)
        return count + sum(len(frame.predictions) for frame in self.frames) if self.frames else count
