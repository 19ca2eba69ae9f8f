"""Plots of results, drawn without a display."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from gateway_models.predictions.shares import wilson
from gateway_models.proof.evaluate import Calibration

NAMED = 60
"""The most classes whose names are drawn; more would be illegible."""
WRITTEN = 15
"""The most classes whose shares are written into the cells."""


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


def reliability(sides: Sequence[tuple[str, Calibration]], title: str, path: Path) -> None:
    """Draw for each side how often answers are right by their scores, with the number of images, into a PNG."""
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
        shares.set(title=f"{name}: expected calibration error {calibration.error:.3f}", xlim=(0, 1), ylim=(0, 1))
        widths = [each.high - each.low for each in calibration.bins]
        counts.bar(
            [each.low for each in calibration.bins], [each.images for each in calibration.bins], widths, align="edge"
        )
        counts.set(xlabel="score of the best class")
    grid[0, 0].set(ylabel="share of right answers")
    grid[1, 0].set(ylabel="images")
    grid[0, -1].legend(loc="lower right")
    figure.suptitle(title, parse_math=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def _to_bounds(share: float, count: int) -> tuple[float, float]:
    """The distances of a share of some images from the bounds of its interval of 95 %."""
    low, high = wilson(round(share * count), count)
    return max(0.0, share - low), max(0.0, high - share)
