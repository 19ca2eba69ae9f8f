"""Shares of a number of images, with the intervals in which they lie."""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Proportion:
    """A proportion of some images, such as the accuracy."""

    hits: int
    count: int

    @property
    def value(self) -> float | None:
        """The share; None of no images."""
        return self.hits / self.count if self.count else None

    def __str__(self) -> str:
        if self.value is None:
            return "-"
        low, high = wilson(self.hits, self.count)
        return f"{100 * self.value:.1f} % ({100 * low:.1f} to {100 * high:.1f})"


CLASS_COLUMNS = ("class", "images", "recall (95 %)", "predicted", "precision (95 %)")


@dataclass(frozen=True, slots=True)
class ClassAccuracy:
    """One class: its recall and its precision."""

    label: str
    recall: Proportion
    precision: Proportion

    @property
    def row(self) -> tuple[str, ...]:
        """The cells for CLASS_COLUMNS."""
        return self.label, str(self.recall.count), str(self.recall), str(self.precision.count), str(self.precision)


@cache  # a test takes 2 ms, and the classes of a model have many proportions in common
def wilson(hits: int, count: int) -> tuple[float, float]:
    """Wilson's score interval of 95 % of a share (E. B. Wilson, JASA 22, 1927); 0 to 1 without observations.

    It stays within 0 and 1, and holds for few images as well.
    """
    if not count:
        return 0.0, 1.0
    from scipy.stats import binomtest

    interval = binomtest(hits, count).proportion_ci(method="wilson")
    return float(interval.low), float(interval.high)


def class_accuracies(pairs: Iterable[tuple[Collection[T], Collection[T]]]) -> dict[T, tuple[Proportion, Proportion]]:
    """The recall and the precision of each class, by the true and the predicted classes of each image."""
    true, predicted, right = Counter[T](), Counter[T](), Counter[T]()
    for actual, found in pairs:
        true.update(actual)
        predicted.update(found)
        right.update({*actual} & {*found})
    return {
        each: (Proportion(right[each], true[each]), Proportion(right[each], predicted[each]))
        for each in {**true, **predicted}
    }
