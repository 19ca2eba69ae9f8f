"""The classes that a model sees in an image."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self, overload


@dataclass(frozen=True, slots=True)
class Prediction:
    """One class and its score; `label` is the class id as text where the model has no labels."""

    label: str
    class_id: int
    score: float


class Predictions(Sequence[Prediction]):
    """Predictions of one image in a fifth of the memory, and without work for the garbage collector.

    A thousand images may have a thousand each, and a full collection that meets a million objects holds the event loop
    for a tenth of a second. `class_ids` and `scores` stand beside `labels`, whose texts many images share.
    """

    __slots__ = ("class_ids", "labels", "scores")

    def __init__(self, labels: tuple[str, ...], class_ids: "array[int]", scores: "array[float]") -> None:
        self.labels = labels
        self.class_ids = class_ids
        self.scores = scores

    @classmethod
    def of(cls, predictions: Iterable[Prediction]) -> Self:
        """The same predictions; they themselves, where they are such already."""
        if isinstance(predictions, cls):
            return predictions
        known = list(predictions)
        return cls(
            tuple(each.label for each in known),
            array("i", [each.class_id for each in known]),
            array("d", [each.score for each in known]),
        )

    def take(self, places: Sequence[int]) -> "Predictions":
        """Those in some places."""
        return Predictions(
            tuple(self.labels[place] for place in places),
            array("i", [self.class_ids[place] for place in places]),
            array("d", [self.scores[place] for place in places]),
        )

    def __len__(self) -> int:
        return len(self.labels)

    def __iter__(self) -> Iterator[Prediction]:
        return map(Prediction, self.labels, self.class_ids, self.scores)

    @overload
    def __getitem__(self, place: int) -> Prediction: ...

    @overload
    def __getitem__(self, place: slice) -> "Predictions": ...

    def __getitem__(self, place: int | slice) -> "Prediction | Predictions":
        if isinstance(place, slice):
            return Predictions(self.labels[place], self.class_ids[place], self.scores[place])
        return Prediction(self.labels[place], self.class_ids[place], self.scores[place])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"Predictions.of({list(self)})"


NO_PREDICTIONS = Predictions.of(())
