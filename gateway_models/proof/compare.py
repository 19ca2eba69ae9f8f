"""`gateway model compare`: two versions of a model on the same images, and whether their difference is significant."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gateway.errors import UserError
from gateway_models.proof.dataset import Sample
from gateway_models.proof.evaluate import SampleAnswer
from gateway_models.proof.image_files import NotCompared
from gateway_predictions.shares import wilson

Probabilities = NDArray[np.float32]
CHANCE = 0.05
"""The significance level: a p-value below it counts as a real difference."""


class NotComparable(UserError):
    """The two versions have no classes in common."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Both versions' answers for one image: probabilities fp32 [classes]."""

    sample: Sample
    first: Probabilities
    second: Probabilities

    @property
    def same(self) -> bool:
        """Whether both have the same top-1 class."""
        return int(self.first.argmax()) == int(self.second.argmax())

    @property
    def largest(self) -> float:
        """The largest difference of a probability."""
        return float(np.abs(self.first - self.second).max())

    @property
    def first_right(self) -> bool:
        """Whether the first version's top-1 class is a true one."""
        return int(self.first.argmax()) in self.sample.classes

    @property
    def second_right(self) -> bool:
        """Whether the second version's top-1 class is a true one."""
        return int(self.second.argmax()) in self.sample.classes


@dataclass(frozen=True)
class Compared:
    """All pairs of a run; `labelled` means that the true classes are known."""

    pairs: Sequence[Pair]
    refused: Sequence[NotCompared] = field(default=())
    labelled: bool = False

    @classmethod
    def of(cls, results: Iterable[Pair | NotCompared], *, labelled: bool) -> "Compared":
        """The results of a run."""
        found = list(results)
        pairs = [each for each in found if isinstance(each, Pair)]
        return cls(pairs, [each for each in found if isinstance(each, NotCompared)], labelled)

    @cached_property
    def different(self) -> Sequence[Pair]:
        """The pairs with different top-1 classes, largest difference first."""
        return sorted((pair for pair in self.pairs if not pair.same), key=lambda pair: pair.largest, reverse=True)

    @property
    def disagreement(self) -> float:
        """The share of images with different top-1 classes; 0 if there are no images."""
        return len(self.different) / max(1, len(self.pairs))

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % confidence interval of `disagreement`, by Wilson."""
        return wilson(len(self.different), len(self.pairs))

    @property
    def differences(self) -> NDArray[np.float64]:
        """The largest difference of a probability in each image, in descending order: fp64 [pairs]."""
        return np.sort(np.array([pair.largest for pair in self.pairs]))[::-1]

    @property
    def accuracy(self) -> tuple[float, float]:
        """Each version's share of correct images."""
        count = max(1, len(self.pairs))
        return sum(pair.first_right for pair in self.pairs) / count, sum(
            pair.second_right for pair in self.pairs
        ) / count

    @property
    def only(self) -> tuple[int, int]:
        """The number of images that only the first version has right, and only the second."""
        return (
            sum(pair.first_right and not pair.second_right for pair in self.pairs),
            sum(pair.second_right and not pair.first_right for pair in self.pairs),
        )

    @property
    def chance(self) -> float:
        """The probability of such a difference in accuracy if neither version is better; see `mcnemar`."""
        return mcnemar(*self.only)

    def holds(self, tolerance: float | None) -> bool:
        """Whether images were compared and the share with different top-1 classes is within the tolerance."""
        return bool(self.pairs) and (tolerance is None or self.disagreement <= tolerance)


def compare(answers: Iterable[tuple[SampleAnswer, ...]]) -> Iterator[Pair | NotCompared]:
    """Pair the answers of two versions, by `predict_each` or `predict_over_http`; raises NotComparable."""
    for first, second in answers:
        if first.probabilities is None or second.probabilities is None:
            yield NotCompared(first.sample.path, first.reason or second.reason)
            continue
        if first.probabilities.shape != second.probabilities.shape:
            counts = f"{len(first.probabilities)} and {len(second.probabilities)}"
            raise NotComparable(f"the versions have {counts} classes, and cannot be compared")
        yield Pair(first.sample, first.probabilities, second.probabilities)


def mcnemar(only_first: int, only_second: int) -> float:
    """The two-sided p-value of McNemar's exact test, from the images that only one version has right.

    Images that both have right, or neither, carry no information. If neither is better, each of the others is a coin
    toss, and this is the probability of tosses at least as one-sided (Q. McNemar, Psychometrika 12, 1947).
    """
    from scipy.stats import binomtest

    tosses = only_first + only_second
    return float(binomtest(only_first, tosses).pvalue) if tosses else 1.0
