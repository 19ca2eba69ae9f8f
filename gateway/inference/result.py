"""A model's answer for an image, the result of a file, and the selection of classes."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Self, overload

import numpy as np
from numpy.typing import NDArray

from gateway.errors import GatewayError, InvalidParameter
from gateway.values.validation import NAME_CHARACTERS


@dataclass(frozen=True, slots=True)
class Prediction:
    """One class and its score; `label` is the class id as text where the model has no labels."""

    label: str
    class_id: int
    score: float


@dataclass(slots=True, eq=False, repr=False)
class Predictions(Sequence[Prediction]):
    """Predictions of one image in a fifth of the memory, without objects that the garbage collector tracks.

    A thousand images may have a thousand predictions each, and a full collection over a million objects blocks the
    event loop for 0.1 s. `labels`, `class_ids` and `scores` are parallel; images share the texts of labels.
    """

    labels: tuple[str, ...]
    class_ids: "array[int]"
    scores: "array[float]"

    @classmethod
    def of(cls, predictions: Iterable[Prediction]) -> Self:
        """The same predictions as Predictions; returned unchanged if they already are."""
        if isinstance(predictions, cls):
            return predictions
        known = list(predictions)
        return cls(
            tuple(each.label for each in known),
            array("i", [each.class_id for each in known]),
            array("d", [each.score for each in known]),
        )

    def take(self, positions: Sequence[int]) -> "Predictions":
        """The predictions at these positions."""
        return Predictions(
            tuple(self.labels[position] for position in positions),
            array("i", [self.class_ids[position] for position in positions]),
            array("d", [self.scores[position] for position in positions]),
        )

    def __len__(self) -> int:
        return len(self.labels)

    def __iter__(self) -> Iterator[Prediction]:
        return map(Prediction, self.labels, self.class_ids, self.scores)

    @overload
    def __getitem__(self, position: int) -> Prediction: ...

    @overload
    def __getitem__(self, position: slice) -> "Predictions": ...

    def __getitem__(self, position: int | slice) -> "Prediction | Predictions":
        if isinstance(position, slice):
            return Predictions(self.labels[position], self.class_ids[position], self.scores[position])
        return Prediction(self.labels[position], self.class_ids[position], self.scores[position])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))


NO_PREDICTIONS = Predictions.of(())


@dataclass(slots=True, eq=False)
class Row:
    """A model's answer for one image: predictions by falling score, none with an `error`."""

    predictions: Sequence[Prediction] = NO_PREDICTIONS
    scores: NDArray[np.float32] | None = None
    """Instead of predictions, if the call has no selection: fp32 [classes], by class id."""
    error: GatewayError | None = None
    """The error of this image alone, such as UndecodableImage."""
    embedding: NDArray[np.float32] | None = None
    """The embedding, fp32 [size], if the call requests it and the model has one."""
    best: Predictions = NO_PREDICTIONS
    """The best classes before the selection, if the call has `least_classes` and a selection."""
    damaged: bool = False
    """Whether the image was decoded although its data is damaged: some of its pixels are wrong."""
    model_version: str = ""
    """The version that answered; "" if none did."""
    multi_label: bool = False
    """Whether the probabilities of the classes are independent (sigmoid)."""
    drift_reference: str = ""
    """The stored reference for this version's drift, from `gateway model drift --store`; "" for none."""

    @property
    def top_score(self) -> float | None:
        """The highest score; None if it has none."""
        if self.scores is not None:
            return float(self.scores.max(initial=0.0))
        known = self.predictions
        scores = known.scores if isinstance(known, Predictions) else [each.score for each in known]
        return max(scores, default=None)


@dataclass(slots=True)
class Result:
    """The result of one uploaded file: its name, its width and height in upright pixels, if known, and its row.

    It keeps none of the image's bytes. A result of several images is a subclass, such as AnimationResult.
    """

    index: int
    filename: str
    width: int | None = None
    height: int | None = None
    row: Row = field(default_factory=Row, repr=False)

    @property
    def error(self) -> GatewayError | None:
        """See Row.error."""
        return self.row.error

    @property
    def predictions(self) -> Sequence[Prediction]:
        """The classes of the image, by falling score; none if there is an error, or `scores`."""
        return self.row.predictions

    @property
    def rows(self) -> Sequence[Row]:
        """One row for each image of the file."""
        return (self.row,)

    @property
    def size(self) -> tuple[int, int]:
        """The numbers of predictions and of results in the native format, with all images of the file."""
        return len(self.row.predictions), 1

    def members(self) -> dict[str, object]:
        """Members of the native format in addition to the common ones, as plain data."""
        return {}


LABELS_HINT = "GET /models/NAME lists the labels."
MAX_TOP_K = 1_000
"""Largest `top_k` of a request."""
MULTI_LABEL_THRESHOLD = 0.5
"""Classes of a multi-label model are returned from this score on, unless the request specifies otherwise."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The best `top_k` of the classes in `labels` ((): all) whose score is at least `threshold`.

    By default a multi-label model returns every class from MULTI_LABEL_THRESHOLD on, and any other its `default_top_k`
    best. MAX_TOP_K bounds all of it. Raises InvalidParameter for a `top_k` beyond that.
    """

    top_k: int | None = None
    threshold: float | None = None
    labels: tuple[str, ...] = ()
    default_top_k: int = 5

    def __post_init__(self) -> None:
        if self.top_k is not None and self.top_k > MAX_TOP_K:
            raise InvalidParameter(f"'top_k': must be at most {MAX_TOP_K:,}.", limit="max_top_k", value=MAX_TOP_K)

    @staticmethod
    def of(top_k: int | None, threshold: float | None, labels: Sequence[str], default_top_k: int) -> "Selection":
        """The selection of a request; raises InvalidParameter."""
        if labels:  # they are of any length, so no selection with labels is kept
            return Selection(top_k, threshold, tuple(labels), default_top_k)
        return _selection(top_k, threshold, default_top_k)

    def class_count(self, *, multi_label: bool) -> int | None:
        """Number of best classes to request from the model; None for all."""
        if self.labels:
            return None
        if self.top_k is not None:
            return self.top_k
        return MAX_TOP_K if multi_label or self.threshold is not None else self.default_top_k

    def apply(self, predictions: Sequence[Prediction], *, multi_label: bool) -> Predictions:
        """Select from `class_count` predictions by falling score; raises InvalidParameter for unknown labels."""
        threshold = self.threshold
        if threshold is None and multi_label and self.top_k is None and not self.labels:
            threshold = MULTI_LABEL_THRESHOLD
        known = Predictions.of(predictions)
        most = self.top_k or MAX_TOP_K
        if threshold is None and not self.labels:
            return known[:most]
        positions: Sequence[int] = range(len(known))
        if self.labels:
            wanted = set(self.labels)
            for label in sorted(wanted.difference(known.labels)):
                raise InvalidParameter(
                    f"'labels': the model has no label {label[:NAME_CHARACTERS]!r}; {LABELS_HINT} For several, repeat "
                    "the parameter."
                )
            positions = [position for position in positions if known.labels[position] in wanted]
        if threshold is not None:
            positions = [position for position in positions if known.scores[position] >= threshold]
        return known.take(positions[:most])


@lru_cache(256)
def _selection(top_k: int | None, threshold: float | None, default_top_k: int) -> Selection:
    """A selection without labels, which the requests with these parameters share."""
    return Selection(top_k, threshold, (), default_top_k)
