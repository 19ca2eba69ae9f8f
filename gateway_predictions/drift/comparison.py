"""Compares a window of logged images with a reference, and tells drift from chance.

The alarm is a permutation test: if both are distributed alike, any division of all images into groups of these sizes is
as probable as the present one. Each division gives a distance of each property, and the alarm needs a distance that
is rare among them. Since several properties are compared, "rare" refers to the least probable of them in each division
(P. H. Westfall and S. S. Young, Resampling-Based Multiple Testing, 1993, the single-step min-P method). So in at most
1 - confidence of the windows without drift there is an alarm at all, however the properties depend on each other.

Images of one request may resemble each other. They stay together in each division, and in each sample of the bootstrap
that gives the intervals of the distances.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gateway.settings import variable
from gateway_predictions.drift.distances import (
    Distance,
    KolmogorovSmirnov,
    MeanDiscrepancy,
    StabilityIndex,
    Weights,
)
from gateway_predictions.drift.sample import EMBEDDING, NAMES, NUMBERS, WindowSample
from gateway_predictions.requirements import LogUnavailable

LEAST_IMAGES = 50
"""Images of which a property must be known on each side; without such a property there is no comparison."""
LEAST_DISTANCE = 0.1
"""A smaller distance of any kind is no alarm, however certain: with enough images, every difference is certain."""
CONFIDENCE = 0.95
PERMUTATIONS, BOOTSTRAPS = 999, 200
_DIGITS = 9
"""Decimals of distances that are compared: sums in another order differ in later ones."""


class TooFewImages(LogUnavailable):
    """The log or the reference has too few images to tell drift from chance."""


@dataclass(frozen=True, slots=True)
class Shift:
    """The comparison of one property."""

    name: str
    method: str
    distance: float
    interval: tuple[float, float]
    """The 95 % confidence interval of the distance, by bootstrap."""
    p_value: float
    """The share of windows without drift with a property that is as improbable as this one."""
    images: tuple[int, int]
    """Images of the reference and of the window whose property is known."""
    is_alarm: bool


@dataclass(frozen=True, slots=True)
class Drift:
    """The comparison of all properties that are known on both sides."""

    shifts: Sequence[Shift]
    images: tuple[int, int]
    """Images of the reference and of the window."""
    requests: tuple[int, int]
    """Requests that sent these images: few requests with many images each are little evidence."""
    confidence: float

    @property
    def alarms(self) -> Sequence[Shift]:
        """The properties that have drifted."""
        return [shift for shift in self.shifts if shift.is_alarm]

    def document(self) -> dict[str, object]:
        """The same as plain data, for JSON."""
        return {
            "drift": bool(self.alarms),
            "confidence": self.confidence,
            "images": {"reference": self.images[0], "window": self.images[1]},
            "requests": {"reference": self.requests[0], "window": self.requests[1]},
            "properties": [
                {
                    "name": shift.name,
                    "method": shift.method,
                    "distance": shift.distance,
                    "low": shift.interval[0],
                    "high": shift.interval[1],
                    "p_value": shift.p_value,
                    "images": {"reference": shift.images[0], "window": shift.images[1]},
                    "drift": shift.is_alarm,
                }
                for shift in self.shifts
            ],
        }


def compare(
    reference: WindowSample,
    window: WindowSample,
    *,
    confidence: float = CONFIDENCE,
    least_distance: float = LEAST_DISTANCE,
    permutations: int = PERMUTATIONS,
    bootstraps: int = BOOTSTRAPS,
    seed: int = 0,
) -> Drift:
    """Compare a window with a reference; the same samples and seed give the same result. Raises TooFewImages."""
    sizes = (len(reference), len(window))
    properties = list(_properties(reference, window)) if min(sizes) else []
    if not properties:
        raise TooFewImages(
            f"the reference has {sizes[0]} images and the window {sizes[1]}, and each needs {LEAST_IMAGES}: log a "
            f"larger share ({variable('log_predictions_share')}), or compare more days"
        )
    rng = np.random.default_rng(seed)
    distances = _distances(properties, _present(sizes))
    blocks = np.concatenate([reference.blocks, window.blocks + int(reference.blocks.max()) + 1])
    divided = [_distances(properties, _divided(blocks, len(window), rng)) for _ in range(permutations)]
    p_values = adjusted_p_values(np.array([distances, *divided]))
    drawn = [_distances(properties, _drawn(reference.blocks, window.blocks, rng)) for _ in range(bootstraps)]
    low, high = np.percentile(np.array(drawn), (2.5, 97.5), axis=0)
    return Drift(
        [
            Shift(
                each.name,
                each.distance.method,
                float(distances[number]),
                (float(low[number]), float(high[number])),
                float(p_values[number]),
                each.images,
                bool(p_values[number] <= 1 - confidence + 1e-12 and distances[number] >= least_distance),
            )
            for number, each in enumerate(properties)
        ],
        sizes,
        (int(reference.blocks.max()) + 1, int(window.blocks.max()) + 1),
        confidence,
    )


def adjusted_p_values(distances: NDArray[np.float64]) -> NDArray[np.float64]:
    """The p-values of the first row among all: distances [1 + permutations, properties] → [properties].

    Adjusted for the number of properties by single-step min-P.
    """
    distances = np.round(distances, _DIGITS)
    total = len(distances)
    p_values = np.empty_like(distances)
    for number, column in enumerate(distances.T):
        p_values[:, number] = total - np.searchsorted(np.sort(column), column, side="left")
    least = p_values.min(axis=1)  # as counts, which are compared exactly
    return np.array([np.count_nonzero(least <= each) / total for each in p_values[0]])


@dataclass(frozen=True, slots=True)
class _Property:
    """A property, and the images of the pool of which it is known."""

    name: str
    known: NDArray[np.intp]
    images: tuple[int, int]
    distance: Distance


def _properties(reference: WindowSample, window: WindowSample) -> Iterator[_Property]:
    """The properties that enough images have on both sides."""
    count = len(reference)

    def known(is_known: NDArray[np.bool_]) -> tuple[NDArray[np.intp], tuple[int, int]] | None:
        images = (int(is_known[:count].sum()), int(is_known[count:].sum()))
        return (np.flatnonzero(is_known), images) if min(images) >= LEAST_IMAGES else None

    def made(
        name: str, values: NDArray[np.generic], is_known: NDArray[np.bool_], distance: Callable[..., Distance]
    ) -> Iterator[_Property]:
        if (found := known(is_known)) is not None:
            yield _Property(name, *found, distance(values[found[0]]))

    for name in NAMES:
        names = np.concatenate([reference.names[name], window.names[name]])
        yield from made(name, names, np.array([each is not None for each in names]), StabilityIndex)
    for name in NUMBERS:
        numbers = np.concatenate([reference.numbers[name], window.numbers[name]])
        yield from made(name, numbers, ~np.isnan(numbers), KolmogorovSmirnov)
    if reference.embeddings.shape[1] == window.embeddings.shape[1] > 0:
        vectors = np.concatenate([reference.embeddings, window.embeddings])
        yield from made(EMBEDDING, vectors, np.isfinite(vectors).all(axis=1), MeanDiscrepancy)


def _distances(properties: Sequence[_Property], weights: tuple[Weights, Weights]) -> NDArray[np.float64]:
    """The distance of each property between two groups of the pool; 0 where a group has no image with the property."""
    found = np.zeros(len(properties))
    for number, each in enumerate(properties):
        reference, window = (group[each.known] for group in weights)
        if reference.any() and window.any():
            found[number] = each.distance.between(reference, window)
    return found


def _present(sizes: tuple[int, int]) -> tuple[Weights, Weights]:
    """The present groups: first the reference, then the window."""
    inside = np.repeat([0.0, 1.0], sizes)
    return 1 - inside, inside


def _divided(blocks: NDArray[np.int64], window_images: int, rng: np.random.Generator) -> tuple[Weights, Weights]:
    """A random division with as many images in the window; at most one request is cut."""
    rank = rng.permutation(int(blocks.max()) + 1)[blocks]
    inside = np.zeros(len(blocks))
    inside[np.argsort(rank, kind="stable")[:window_images]] = 1
    return 1 - inside, inside


def _drawn(
    reference: NDArray[np.int64], window: NDArray[np.int64], rng: np.random.Generator
) -> tuple[Weights, Weights]:
    """As many requests of each group, drawn with replacement."""
    drawn = []
    for blocks in (reference, window):
        requests = int(blocks.max()) + 1
        times = np.bincount(rng.integers(0, requests, requests), minlength=requests)
        drawn.append(times[blocks].astype(np.float64))
    return (
        np.concatenate([drawn[0], np.zeros(len(window))]),
        np.concatenate([np.zeros(len(reference)), drawn[1]]),
    )
