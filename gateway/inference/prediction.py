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

    def __repr__(self) -> str:
        return f"Predictions.of({list(self)})"


NO_PREDICTIONS = Predictions.of(())
