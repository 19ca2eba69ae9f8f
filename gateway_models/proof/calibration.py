"""How well scores say how often answers are right: the expected calibration error, and its bins.

It is about the best class of each image: an image is answered with a score, and the answer is right or not.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BINS = 15
"""Bins of equal width, as C. Guo et al. have them (On Calibration of Modern Neural Networks, ICML 2017)."""

Scores = NDArray[np.float64]
Right = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Bin:
    """The images whose best class has a score above `low` and up to `high`."""

    low: float
    high: float
    images: int
    score: float
    """The mean score of their best classes."""
    right: float
    """The share of them that were right."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """The calibration of some answers."""

    bins: tuple[Bin, ...]
    """Those with images."""

    @property
    def error(self) -> float:
        """The expected calibration error: the mean over images of |score - share right| in the bin of each."""
        return sum(each.images * abs(each.score - each.right) for each in self.bins) / sum(
            each.images for each in self.bins
        )


def calibration_of(scores: Scores, right: Right) -> Calibration:
    """The calibration of answers: the scores of their best classes, fp64 [images], and whether each is right.

    There must be images. A score at the border of two bins is in the lower one.
    """
    numbers = np.clip(np.ceil(scores * BINS).astype(np.intp) - 1, 0, BINS - 1)
    bins = ((int(number), numbers == number) for number in np.unique(numbers))
    return Calibration(
        tuple(
            Bin(n / BINS, (n + 1) / BINS, int(inside.sum()), float(scores[inside].mean()), float(right[inside].mean()))
            for n, inside in bins
        )
    )
