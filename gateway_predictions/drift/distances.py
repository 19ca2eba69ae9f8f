"""Distances between the distributions of two groups of images.

Both groups are parts of one pool. A group is an array with the weight of each image of the pool: 0 or 1, or how often
a bootstrap has drawn the image. So one preparation (sorting, kernel) serves thousands of groupings.
"""

from collections import Counter
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Weights = NDArray[np.float64]
MOST_NAMES = 20
"""The most frequent names are compared each, and the others as one."""
OTHER = "other"


class Distance(Protocol):
    """A distance between two groups with at least one image each; 0 if they are distributed alike."""

    method: str
    """Its name in reports."""

    def between(self, reference: Weights, window: Weights) -> float:
        """The distance of two groups, by the weights of the pool's images."""
        ...


class KolmogorovSmirnov:
    """The distance of numbers: the largest difference between the shares of images up to some value; 0 to 1."""

    method = "Kolmogorov–Smirnov"

    def __init__(self, values: NDArray[np.float64]) -> None:
        self._order = np.argsort(values, kind="stable")
        ordered = values[self._order]
        # Equal values are one step of the distribution.
        self._ends = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], [True]))

    def between(self, reference: Weights, window: Weights) -> float:
        """See Distance."""
        difference = np.cumsum((window / window.sum() - reference / reference.sum())[self._order])
        return float(np.abs(difference[self._ends]).max())


class StabilityIndex:
    """The distance of names: the population stability index; by custom 0.1 is a moderate shift, 0.25 a large one."""

    method = "PSI"

    def __init__(self, names: NDArray[np.object_]) -> None:
        known = [name for name, _ in Counter(names.tolist()).most_common(MOST_NAMES)]
        numbers = {name: number for number, name in enumerate(known)}
        self._codes = np.array([numbers.get(name, len(known)) for name in names], np.int64)
        self._count = int(self._codes.max()) + 1

    def between(self, reference: Weights, window: Weights) -> float:
        """See Distance."""
        return psi(self._counts(reference), self._counts(window))

    def _counts(self, weights: Weights) -> NDArray[np.float64]:
        return np.bincount(self._codes, weights, self._count).astype(np.float64)


class MeanDiscrepancy:
    """The distance of vectors: the maximum mean discrepancy with a Gaussian kernel; 0 to 1.4.

    Source: A. Gretton et al., JMLR 13, 2012. The square of the kernel's width is the median of the squared distances.
    The estimate of the square is unbiased, and counts as 0 where it is negative.
    """

    method = "MMD"

    def __init__(self, vectors: NDArray[np.float32]) -> None:
        # Centred, since the squares below lose digits if all vectors lie far from 0.
        points = vectors - vectors.mean(axis=0, dtype=np.float64).astype(np.float32)
        lengths = (points * points).sum(axis=1)
        squares = np.maximum(lengths[:, None] + lengths[None, :] - 2 * points @ points.T, 0)
        np.fill_diagonal(squares, 0)
        width = float(np.median(squares[np.triu_indices(len(points), 1)])) if len(points) > 1 else 0.0
        self._kernel = np.exp(-squares / (width or 1.0)).astype(np.float32)

    def between(self, reference: Weights, window: Weights) -> float:
        """See Distance."""
        shares = np.stack([reference / reference.sum(), window / window.sum()], axis=1).astype(np.float32)
        products = (shares.T @ (self._kernel @ shares)).astype(np.float64)
        # An image is not compared with itself, of which the kernel is 1.
        alone = (shares.astype(np.float64) ** 2).sum(axis=0)
        within = (np.diag(products) - alone) / np.maximum(1 - alone, 1e-9)
        return float(np.sqrt(max(0.0, within.sum() - 2 * products[0, 1])))


def psi(reference: NDArray[np.float64], window: NDArray[np.float64]) -> float:
    """The population stability index of two groups, by the number of images in each bin.

    Half an image is added to each bin, so that an empty one has a logarithm.
    """
    expected, actual = ((counts + 0.5) / (counts.sum() + 0.5 * len(counts)) for counts in (reference, window))
    return float(((actual - expected) * np.log(actual / expected)).sum())
