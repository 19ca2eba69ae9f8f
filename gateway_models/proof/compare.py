"""`gateway model compare`: two versions of a model on the same images, and whether their difference is significant."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gateway_models.predictions.shares import wilson
from gateway_models.proof.dataset import Sample
from gateway_models.proof.evaluate import predicted
from gateway_models.proof.image_files import NotCompared

Probabilities = NDArray[np.float32]
CHANCE = 0.05
"""The significance level: a p-value below it counts as a real difference."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Both versions' answers for one image: probabilities fp32 [classes].

    An answer is the top-1 class, or the classes from a probability of one half for a multi-label model.
    """

    sample: Sample
    scores: tuple[Probabilities, Probabilities]
    multi_label: bool = False

    @property
    def answers(self) -> tuple[frozenset[int], ...]:
        """The classes that each version predicts."""
        return tuple(predicted(scores, multi_label=self.multi_label) for scores in self.scores)

    @property
    def largest(self) -> float:
        """The largest difference of a probability."""
        return float(np.abs(self.scores[0] - self.scores[1]).max())

    @property
    def right(self) -> tuple[bool, ...]:
        """Whether each answer is a true class, or all true classes and no other for a multi-label model."""
        true = self.sample.classes
        return tuple(answer == true if self.multi_label else answer <= true for answer in self.answers)


@dataclass(frozen=True)
class Compared:
    """All pairs of a run; `labelled` means that the true classes are known."""

    pairs: Sequence[Pair]
    refused: Sequence[NotCompared] = field(default=())
    labelled: bool = False

    @cached_property
    def different(self) -> Sequence[Pair]:
        """The pairs with different answers, largest difference of a probability first."""
        return sorted((each for each in self.pairs if len(set(each.answers)) > 1), key=lambda each: -each.largest)

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
        first, second = np.mean([each.right for each in self.pairs], axis=0)
        return float(first), float(second)

    @property
    def only(self) -> tuple[int, int]:
        """The number of images that only the first version has right, and only the second."""
        right = [each.right for each in self.pairs]
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
