"""How well scores say how often answers are right: expected calibration error, Brier score, and the reliability bins.

All of it is about the best class of each image: an image is answered with a score, and the answer is right or not.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BINS = 15
"""Bins of equal width, as C. Guo et al. have them (On Calibration of Modern Neural Networks, ICML 2017)."""
RESAMPLES = 1_000
MOST_DRAWN = 20_000_000
"""The most images that are drawn in all resamples: of a million images there are twenty resamples, which suffice."""
LEAST_RESAMPLES = 20
CONFIDENCE = 0.95

Scores = NDArray[np.float64]
Right = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A measure, and the interval in which 95 % of its values on resampled images lie."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.4f} ({self.low:.4f} to {self.high:.4f})"

    def document(self) -> dict[str, float]:
        """The same as plain data."""
        return {"value": self.value, "low": self.low, "high": self.high}


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
    error: Estimate
    """Expected calibration error: the mean over images of |score - share right| in the bin of each."""
    brier: Estimate
    """The mean of (score - 1)² of right answers and score² of wrong ones (G. W. Brier, 1950), of the best class."""
    bins: tuple[Bin, ...]
    """Those with images."""

    def document(self) -> dict[str, object]:
        """The same as plain data, for JSON."""
        bins = [
            {"low": each.low, "high": each.high, "images": each.images, "score": each.score, "right": each.right}
            for each in self.bins
        ]
        return {
            "images": self.images,
            "expected_calibration_error": self.error.document(),
            "brier_score": self.brier.document(),
            "bins": bins,
        }


def calibration_of(scores: Scores, right: Right) -> Calibration:
    """The calibration of answers: the scores of their best classes, fp64 [images], and whether each is right.

    Raises ValueError without images.
    """
    if not len(scores):
        raise ValueError("the calibration of no images is not defined")
    error, brier = measures(scores, right)
    drawn = np.array([measures(scores[chosen], right[chosen]) for chosen in resamples(len(scores))])
    return Calibration(
        len(scores),
        estimate(error, drawn[:, 0]),
        estimate(brier, drawn[:, 1]),
        tuple(_bins(scores, right)),
    )


def measures(scores: Scores, right: Right) -> tuple[float, float]:
    """Expected calibration error and Brier score of answers."""
    numbers = _numbers(scores)
    difference = np.bincount(numbers, weights=scores - right, minlength=BINS)
    return float(np.abs(difference).sum() / len(scores)), float(np.mean((scores - right) ** 2))


def resamples(images: int) -> Iterator[NDArray[np.intp]]:
    """Images drawn with replacement, the same ones in every call with this number of images."""
    rng = np.random.default_rng(0)
    for _ in range(int(np.clip(MOST_DRAWN // images, LEAST_RESAMPLES, RESAMPLES))):
        yield rng.integers(0, images, images)


def estimate(value: float, resampled: NDArray[np.float64]) -> Estimate:
    """A measure with its interval by percentiles (B. Efron, 1979)."""
    low, high = np.quantile(resampled, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Estimate(value, float(low), float(high))


def _bins(scores: Scores, right: Right) -> Iterator[Bin]:
    numbers = _numbers(scores)
    for number in np.unique(numbers):
        of_bin = numbers == number
        yield Bin(
            float(number / BINS),
            float((number + 1) / BINS),
            int(of_bin.sum()),
            float(scores[of_bin].mean()),
            float(right[of_bin].mean()),
        )


def _numbers(scores: Scores) -> NDArray[np.intp]:
    """The bin of each score: a score at a border is in the lower one."""
    return np.clip(np.ceil(scores * BINS).astype(np.intp) - 1, 0, BINS - 1)
