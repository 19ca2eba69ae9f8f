"""Plots of results, drawn without a display."""

import io
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from gateway_predictions.calibration import Calibration
from gateway_predictions.shares import wilson

NAMED = 60
"""The most classes whose names are drawn; more would be illegible."""
WRITTEN = 15
"""The most classes whose shares are written into the cells."""
FREQUENT = 12
"""The most names whose frequencies are compared."""
SIDES = ("reference", "window")
COLOURS = ("tab:gray", "tab:blue")


def confusion_matrix(counts: NDArray[np.float64], labels: Sequence[str], path: Path, title: str) -> None:
    """Draw counts [true, predicted] as shares of each row; classes that never occur are left out."""
    seen: list[int] = np.flatnonzero(counts.sum(axis=0) + counts.sum(axis=1)).tolist()
    counts, names = counts[np.ix_(seen, seen)], [labels[number] for number in seen]
    shares = counts / np.maximum(1, counts.sum(axis=1, keepdims=True))
    side = min(16.0, 4.0 + 0.35 * len(names))
    figure = Figure(figsize=(side, side), layout="constrained")
    axes = figure.add_subplot()
    drawn = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    figure.colorbar(drawn, ax=axes, label="share of the true class", shrink=0.7)
    axes.set(title=title, xlabel="predicted", ylabel="true")
    if len(names) <= NAMED:
        axes.set_xticks(range(len(names)), names, rotation=60, ha="right")
        axes.set_yticks(range(len(names)), names)
    if len(names) <= WRITTEN:
        for (row, column), share in np.ndenumerate(shares):
            if share:
                colour = "white" if share > 0.6 else "black"
                axes.text(column, row, f"{share:.2f}", ha="center", va="center", color=colour)
    figure.savefig(path, dpi=120)


def reliability(sides: Sequence[tuple[str, Calibration]], title: str) -> bytes:
    """Draw for each side how often answers are right by their scores, with the number of images, as a PNG."""
    figure = Figure(figsize=(4.6 * len(sides), 5.6), layout="constrained")
    grid = figure.subplots(2, len(sides), sharex=True, sharey="row", height_ratios=(3, 1), squeeze=False)
    for column, (name, calibration) in enumerate(sides):
        shares, counts = grid[0, column], grid[1, column]
        shares.plot([0, 1], [0, 1], color="tab:gray", linestyle="--", label="as often as the score says")
        # The intervals of a share of some images, not of the score.
        errors = [_to_bounds(each.right, each.images) for each in calibration.bins]
        shares.errorbar(
            [each.score for each in calibration.bins],
            [each.right for each in calibration.bins],
            yerr=np.array(errors).T,
            fmt="o-",
            color="tab:blue",
            ecolor="lightsteelblue",
            label="right",
        )
        shares.set(title=f"{name}: expected calibration error {calibration.error.value:.3f}", xlim=(0, 1), ylim=(0, 1))
        widths = [each.high - each.low for each in calibration.bins]
        counts.bar(
            [each.low for each in calibration.bins], [each.images for each in calibration.bins], widths, align="edge"
        )
        counts.set(xlabel="score of the best class")
    grid[0, 0].set(ylabel="share of right answers")
    grid[1, 0].set(ylabel="images")
    grid[0, 0].legend(loc="upper left")
    figure.suptitle(title)
    return _png(figure)


def _to_bounds(share: float, count: int) -> tuple[float, float]:
    """The distances of a share of some images from the bounds of its interval of 95 %."""
    low, high = wilson(round(share * count), count)
    return max(0.0, share - low), max(0.0, high - share)


def speeds(names: Sequence[str], images_per_second: Sequence[float], fits: Sequence[bool], path: Path) -> None:
    """Draw a bar for each variant; those beyond the tolerance are pale."""
    figure = Figure(figsize=(9, 1.2 + 0.45 * len(names)), layout="constrained")
    axes = figure.add_subplot()
    colours = ["tab:blue" if fit else "lightgray" for fit in fits]
    bars = axes.barh(range(len(names)), images_per_second, color=colours)
    axes.bar_label(bars, fmt="%.1f", padding=3)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    # Space for the numbers behind the bars.
    axes.margins(x=0.1)
    axes.set(xlabel="images/s", title="pale: answers beyond the tolerance")
    figure.savefig(path, dpi=120)


def distributions(reference: NDArray[np.float64], window: NDArray[np.float64], unit: str) -> bytes:
    """Draw the shares of two groups up to each value, as a PNG; NaN is left out."""
    figure, axes = _small()
    for name, colour, values in zip(SIDES, COLOURS, (reference, window), strict=True):
        axes.ecdf(values[~np.isnan(values)], label=name, color=colour)
    axes.set(xlabel=unit, ylabel="share of the images up to")
    axes.legend()
    return _png(figure)


def frequencies(reference: Sequence[str], window: Sequence[str]) -> bytes:
    """Draw the shares of the most frequent names of two groups, as a PNG."""
    counts = [Counter(reference), Counter(window)]
    shares = [{name: number / count.total() for name, number in count.items()} for count in counts]
    names = sorted(set(reference) | set(window), key=lambda name: (-max(each.get(name, 0) for each in shares), name))
    shown = names[:FREQUENT]
    figure, axes = _small()
    for number, (name, colour, each) in enumerate(zip(SIDES, COLOURS, shares, strict=True)):
        places = [place + 0.4 * number - 0.2 for place in range(len(shown))]
        axes.barh(places, [each.get(label, 0) for label in shown], height=0.4, label=name, color=colour)
    axes.set_yticks(
        range(len(shown)), [label if len(label) <= 24 else f"{label[:23]}…" for label in shown], parse_math=False
    )
    axes.invert_yaxis()
    axes.set(xlabel="share of the images")
    axes.legend()
    return _png(figure)


def projections(reference: NDArray[np.float32], window: NDArray[np.float32]) -> bytes:
    """Draw vectors of two groups by the two principal components of both, as a PNG; those with NaN are left out."""
    groups = [vectors[np.isfinite(vectors).all(axis=1)].astype(np.float64) for vectors in (reference, window)]
    together = np.concatenate(groups)
    _, _, components = np.linalg.svd(together - together.mean(axis=0), full_matrices=False)
    figure, axes = _small()
    for name, colour, vectors in zip(SIDES, COLOURS, groups, strict=True):
        points = (vectors - together.mean(axis=0)) @ components[:2].T
        axes.scatter(points[:, 0], points[:, -1], s=6, alpha=0.6, label=name, color=colour)
    axes.set(xlabel="first principal component", ylabel="second")
    axes.legend()
    return _png(figure)


def _small() -> tuple[Figure, Axes]:
    figure = Figure(figsize=(5, 3.4), layout="constrained")
    return figure, figure.add_subplot()


def _png(figure: Figure) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=110)
    return file.getvalue()
