"""How well scores say how often answers are right: expected calibration error, Brier score, and the reliability bins.

All of it is about the best class of each image: an image is answered with a score, and the answer is right or not.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BINS = 15
"""Bins of equal width, as C. Guo et al. have them (On Calibration of Modern Neural Networks, ICML 2017)."""
RESAMPLES, LEAST_RESAMPLES, MOST_DRAWN = 1_000, 20, 20_000_000
"""Resamples, and fewer if they would have more than MOST_DRAWN images in all: of a million images twenty suffice."""

Scores = NDArray[np.float64]
Right = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A measure, and the interval in which 95 % of its values on resampled images lie (percentiles, B. Efron 1979)."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.4f} ({self.low:.4f} to {self.high:.4f})"


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

    images: int
    expected_calibration_error: Estimate
    """The mean over images of |score - share right| in the bin of each."""
    brier_score: Estimate
    """The mean of (score - 1)² of right answers and score² of wrong ones (G. W. Brier, 1950), of the best class."""
    bins: tuple[Bin, ...]
    """Those with images."""


def calibration_of(scores: Scores, right: Right) -> Calibration:
    """The calibration of answers: the scores of their best classes, fp64 [images], and whether each is right.

    Raises ValueError without images.
    """
    if not len(scores):
        raise ValueError("the calibration of no images is not defined")
    rng, images = np.random.default_rng(0), len(scores)
    count = int(np.clip(MOST_DRAWN // images, LEAST_RESAMPLES, RESAMPLES))
    resampled = (rng.integers(0, images, images) for _ in range(count))
    bounds = np.quantile([measures(scores[drawn], right[drawn]) for drawn in resampled], (0.025, 0.975), axis=0)
    error, brier = (Estimate(*map(float, each)) for each in zip(measures(scores, right), *bounds, strict=True))
    numbers = _numbers(scores)
    bins = ((int(number), numbers == number) for number in np.unique(numbers))
    return Calibration(
        images,
        error,
        brier,
        tuple(
            Bin(n / BINS, (n + 1) / BINS, int(inside.sum()), float(scores[inside].mean()), float(right[inside].mean()))
            for n, inside in bins
        ),
    )


def measures(scores: Scores, right: Right) -> tuple[float, float]:
    """Expected calibration error and Brier score of answers."""
    difference = np.bincount(_numbers(scores), weights=scores - right, minlength=BINS)
    return float(np.abs(difference).sum() / len(scores)), float(np.mean((scores - right) ** 2))


def _numbers(scores: Scores) -> NDArray[np.intp]:
    """The bin of each score: a score at a border is in the lower one."""
    return np.clip(np.ceil(scores * BINS).astype(np.intp) - 1, 0, BINS - 1)
