"""Plots of results, drawn without a display."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

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
