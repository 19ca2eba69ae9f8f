"""Compares logged images of two periods, and tells drift from chance, by SciPy's tests.

Each property has a distance and the probability of a distance as large without drift (p). Since several properties are
compared, p is multiplied by their number (Bonferroni). Images of one request may resemble each other, so one image of
each request counts, chosen at random.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gateway.settings import variable
from gateway_models.predictions.layout import SAMPLE, order_of
from gateway_models.predictions.live_drift import (
    BOUNDS,
    CLASS,
    DECIMALS,
    ENTROPY,
    MOST_NAMES,
    OTHER,
    SCORE,
    STORED_IMAGES,
    LiveReference,
)
from gateway_models.predictions.store import LogUnavailable

if TYPE_CHECKING:
    from gateway_models.predictions.reader import LogReader, Row

MOST_IMAGES = 1_000
"""Images of a side at most: enough to find a Kolmogorov–Smirnov distance of 0.1."""
LEAST_IMAGES = 50
"""Images of which a property must be known on each side; without such a property there is no comparison."""
LEAST_DISTANCE = 0.1
"""A smaller distance of any kind raises no alarm: with enough images, every difference is certain."""
CONFIDENCE = 0.95
RESAMPLES = 999
DECIMALS_OF_SHARES = 6
PIXELS, FORMAT = "pixels", "format"
NAMES = (CLASS, FORMAT)
"""Properties that are names: the best class, by its number, and the format of the file."""
NUMBERS = (SCORE, ENTROPY, PIXELS)
"""Properties that are numbers: the best score, the entropy, and the size of the image."""
PROPERTIES = (*NAMES, *NUMBERS)
_COLUMNS = (
    *("request_id", "index", "version", "reasons", "error", "labels", "class_ids", "scores"),
    *(ENTROPY, "width", "height", FORMAT),
)
Values = NDArray[Any]


@dataclass(frozen=True, slots=True)
class WindowSample:
    """The known values of each property of some images: [images]."""

    values: Mapping[str, Values]
    images: int
    labels: Mapping[str, str]
    """The labels of classes, as far as they are known."""


@dataclass(frozen=True, slots=True)
class Shift:
    """The comparison of one property."""

    name: str
    method: str
    distance: float
    p_value: float
    """The probability that any property has a distance as improbable as this one without drift."""
    reference: int
    """Images of the reference whose property is known."""
    window: int
    drift: bool


def sample_of(images: Sequence[Mapping[str, Any]], labels: Mapping[str, str] | None = None) -> WindowSample:
    """The sample of some images, each with its properties by name, None if unknown."""
    known = {name: [row[name] for row in images if row.get(name) is not None] for name in PROPERTIES}
    values: dict[str, Values] = {name: np.array(known[name], np.str_) for name in NAMES}
    # The log has numbers of 32 bits; scores of Triton are texts of 6 decimals or numbers, which agree when rounded.
    values |= {name: np.array(known[name], np.float32).astype(np.float64) for name in NUMBERS}
    values |= {name: values[name].round(DECIMALS) for name in (SCORE, ENTROPY)}
    return WindowSample(values, len(images), labels or {})


def compare(reference: WindowSample, window: WindowSample) -> list[Shift]:
    """Compare each property that enough images of both sides have; raises LogUnavailable if there is none."""
    known = {name: (reference.values[name], window.values[name]) for name in PROPERTIES}
    known = {name: sides for name, sides in known.items() if min(map(len, sides)) >= LEAST_IMAGES}
    if not known:
        raise LogUnavailable(
            f"the reference has {reference.images} images and the window {window.images}, each of another request, and "
            f"each side needs {LEAST_IMAGES}: log a larger share ({variable('log_predictions_share')}), or compare "
            "more days"
        )
    shifts = []
    for name, sides in known.items():
        method, test = ("PSI", _stability_index) if name in NAMES else ("Kolmogorov–Smirnov", _kolmogorov_smirnov)
        distance, p_value = test(*sides)
        p_value = min(1.0, p_value * len(known))
        drifted = p_value <= 1 - CONFIDENCE and distance >= LEAST_DISTANCE
        shifts.append(Shift(name, method, distance, p_value, len(sides[0]), len(sides[1]), drifted))
    return shifts


def _kolmogorov_smirnov(reference: Values, window: Values) -> tuple[float, float]:
    """The largest difference between the shares of images up to some value."""
    from scipy import stats

    found = stats.ks_2samp(reference, window)
    return float(found.statistic), float(found.pvalue)


def _stability_index(reference: Values, window: Values) -> tuple[float, float]:
    """The population stability index of the most frequent names, and of the others together."""
    from scipy import stats

    frequent = [name for name, _ in Counter([*reference, *window]).most_common(MOST_NAMES)]
    counts = np.array([[(side == name).sum() for name in frequent] for side in (reference, window)])
    rest = np.array([[len(reference)], [len(window)]]) - counts.sum(axis=1, keepdims=True)
    counts = np.hstack([counts, rest]) if rest.any() else counts
    if counts.shape[1] == 1:
        return 0.0, 1.0
    method = stats.MonteCarloMethod(n_resamples=RESAMPLES, rng=np.random.default_rng(0))
    return psi(*counts), float(stats.chi2_contingency(counts, correction=False, method=method).pvalue)


def psi(reference: Values, window: Values) -> float:
    """The population stability index of two groups, by the number of images in each bin.

    Half an image is added to each bin, so that an empty one has a logarithm.
    """
    expected, actual = ((counts + 0.5) / (counts.sum() + 0.5 * len(counts)) for counts in (reference, window))
    return float(((actual - expected) * np.log(actual / expected)).sum())


def version_in(log: "LogReader", model: str, since: datetime | None, until: datetime | None) -> str:
    """The version that most random rows of a period have; raises LogUnavailable if there are none."""
    found: Counter[str] = Counter()
    for table in log.tables(model=model, since=since, until=until, columns=["version", "reasons", "error"]):
        found.update(row["version"] for row in table.to_pylist() if _is_random(row) and row["version"])
    if not found:
        hint = f"compare more days, or log a larger share ({variable('log_predictions_share')})"
        raise LogUnavailable(f"{log.url} has no random rows of {model} in this time: {hint}")
    return found.most_common(1)[0][0]


def sample_from(
    log: "LogReader", model: str, version: str, since: datetime | None, until: datetime | None
) -> WindowSample:
    """The random rows of a version: one of each request, of at most MOST_IMAGES requests.

    The requests are chosen at random, but always alike.
    """
    kept: list[Row] = []
    for table in log.tables(model=model, since=since, until=until, columns=_COLUMNS):
        rows = (row for row in table.to_pylist() if _is_random(row) and row["version"] == version)
        kept = _one_of_each_request([*kept, *rows])
    return sample_of([_properties(row) for row in kept], _labels(kept))


def _one_of_each_request(rows: "list[Row]") -> "list[Row]":
    once: dict[str, Row] = {}
    for row in sorted(rows, key=_order):
        once.setdefault(row["request_id"], row)
    return list(once.values())[:MOST_IMAGES]


def _order(row: "Row") -> tuple[bytes, bytes]:
    request_id = row["request_id"]
    return order_of(request_id), order_of(f"{request_id}/{row['index']}")


def _is_random(row: "Row") -> bool:
    """Whether a row was logged at random and has a result. Rules prefer some images, and would look like drift."""
    return SAMPLE in (row["reasons"] or ()) and row["error"] is None


def _properties(row: "Row") -> dict[str, Any]:
    return {
        **row,
        CLASS: str(row["class_ids"][0]) if row["class_ids"] else None,
        SCORE: row["scores"][0] if row["scores"] else None,
        PIXELS: row["width"] * row["height"] if row["width"] and row["height"] else None,
    }


def _labels(rows: "list[Row]") -> dict[str, str]:
    """The labels of the best classes. Rows of requests without labels have the number instead."""
    found: dict[str, str] = {}
    for row in rows:
        if row["class_ids"] and row["labels"]:
            number, label = str(row["class_ids"][0]), str(row["labels"][0])
            if label != number or number not in found:
                found[number] = label
    return found


def reference_of(sample: WindowSample) -> LiveReference:
    """The reference of a sample; raises LogUnavailable if it has fewer than STORED_IMAGES."""
    names: list[str] = sample.values[CLASS].tolist()
    if len(names) < STORED_IMAGES:
        raise LogUnavailable(
            f"a reference is stored from {STORED_IMAGES} images at least, and there are {len(names)}: chance alone "
            "would raise the alert"
        )
    frequent = Counter(names).most_common(MOST_NAMES)
    bins = len(frequent) + 1
    labels = _distinct({int(name): sample.labels.get(name, name) for name, _ in frequent})
    images = len(names) + 0.5 * bins
    classes = {
        int(name): (labels[int(name)], round((count + 0.5) / images, DECIMALS_OF_SHARES)) for name, count in frequent
    }
    shares = {name: _shares(sample.values[name], bounds) for name, bounds in BOUNDS.items()}
    return LiveReference(len(names), shares, classes)


def _shares(values: Values, bounds: Sequence[float]) -> list[float]:
    """The share of each bin, with half an image added to each."""
    counts = np.bincount(np.searchsorted(bounds, values, side="left"), minlength=len(bounds) + 1)
    shares: list[float] = ((counts + 0.5) / (counts.sum() + 0.5 * len(counts))).round(DECIMALS_OF_SHARES).tolist()
    return shares


def _distinct(labels: Mapping[int, str]) -> dict[int, str]:
    """The labels; a label that occurs twice, or is the name of all other classes, has its number behind it."""
    times = Counter(labels.values())
    return {
        number: label if times[label] == 1 and label != OTHER else f"{label} ({number})"
        for number, label in labels.items()
    }
