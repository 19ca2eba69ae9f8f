"""`gateway model compare`: two versions of a model on the same images, and whether their difference is significant."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from gateway_models.predictions.shares import wilson
from gateway_models.proof.evaluate import Answered, predicted
from gateway_models.proof.image_files import NotCompared

CHANCE = 0.05
"""The significance level: a p-value below it counts as a real difference."""


def apart(pair: Answered) -> float:
    """The largest difference of a probability."""
    first, second = pair.scores
    return float(np.abs(first - second).max())


@dataclass(frozen=True)
class Compared:
    """The answers of two versions to all images of a run; `labelled` means that the true classes are known."""

    pairs: Sequence[Answered]
    refused: Sequence[NotCompared] = field(default=())
    labelled: bool = False
    multi_label: bool = False

    def answers(self, pair: Answered) -> tuple[frozenset[int], ...]:
        """The classes that each version predicts."""
        return tuple(predicted(scores, multi_label=self.multi_label) for scores in pair.scores)

    def right(self, pair: Answered) -> tuple[bool, ...]:
        """Whether each answer is a true class, or all true classes and no other for a multi-label model."""
        true = pair.sample.classes
        return tuple(answer == true if self.multi_label else answer <= true for answer in self.answers(pair))

    @cached_property
    def different(self) -> Sequence[Answered]:
        """The pairs with different answers, largest difference of a probability first."""
        return sorted((each for each in self.pairs if len(set(self.answers(each))) > 1), key=apart, reverse=True)

    @property
    def disagreement(self) -> float:
        """The share of images with different answers; 0 if there are no images."""
        return len(self.different) / max(1, len(self.pairs))

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % confidence interval of `disagreement`, by Wilson."""
        return wilson(len(self.different), len(self.pairs))

    @property
    def accuracy(self) -> tuple[float, float]:
        """Each version's share of correct images."""
        first, second = np.mean([self.right(each) for each in self.pairs], axis=0)
        return float(first), float(second)

    @property
    def only(self) -> tuple[int, int]:
        """The number of images that only the first version has right, and only the second."""
        right = [self.right(each) for each in self.pairs]
        return right.count((True, False)), right.count((False, True))

    @property
    def chance(self) -> float:
        """The two-sided p-value of McNemar's exact test, under the hypothesis that neither version is better.

        Images that both have right, or neither, carry no information. Each of the others is a coin toss (Q. McNemar,
        Psychometrika 12, 1947).
        """
        from scipy.stats import binomtest

        return float(binomtest(self.only[0], sum(self.only)).pvalue) if sum(self.only) else 1.0

    def holds(self, tolerance: float | None) -> bool:
        """Whether images were compared and the share with different answers is within the tolerance."""
        return bool(self.pairs) and (tolerance is None or self.disagreement <= tolerance)
