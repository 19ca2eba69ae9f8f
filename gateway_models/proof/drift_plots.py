"""The plots of `gateway model drift`."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from gateway_predictions.drift import EMBEDDING, NAMES, Shift, WindowSample
from gateway_predictions.live_drift import CLASS

COLUMNS = 3
"""Plots beside each other."""
FREQUENT = 12
"""The most names whose frequencies are compared."""
SIDES = ("reference", "window")
COLOURS = ("tab:gray", "tab:blue")


def drift_plots(shifts: Sequence[Shift], reference: WindowSample, window: WindowSample, title: str, path: Path) -> None:
    """Draw the distributions of each compared property, one plot for each, into a PNG."""
    rows = -(-len(shifts) // COLUMNS)
    figure = Figure(figsize=(5 * COLUMNS, 3.6 * rows), layout="constrained")
    grid = figure.subplots(rows, COLUMNS, squeeze=False).flatten()
    for axes in grid[len(shifts) :]:
        axes.set_axis_off()
    for axes, shift in zip(grid, shifts, strict=False):
        sides = [side.values[shift.name] for side in (reference, window)]
        if shift.name == EMBEDDING:
            _draw_projections(axes, sides)
        elif shift.name in NAMES:
            labels = {**reference.labels, **window.labels} if shift.name == CLASS else {}
            _draw_frequencies(axes, [[labels.get(name, name) for name in side.tolist()] for side in sides])
        else:
            for name, colour, values in zip(SIDES, COLOURS, sides, strict=True):
                axes.ecdf(values, label=name, color=colour)
        axes.legend()
        axes.set_title(
            f"{shift.name}: {shift.distance:.3f} ({shift.method}), p {shift.p_value:.3f}",
            color="tab:red" if shift.drift else "black",
        )
    figure.suptitle(title, parse_math=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def _draw_frequencies(axes: Axes, sides: Sequence[Sequence[str]]) -> None:
    """The shares of the most frequent names of two groups."""
    shares = [{name: number / len(side) for name, number in Counter(side).items()} for side in sides]
    names = sorted({*sides[0], *sides[1]}, key=lambda name: (-max(each.get(name, 0) for each in shares), name))
    shown = names[:FREQUENT]
    for number, (name, colour, each) in enumerate(zip(SIDES, COLOURS, shares, strict=True)):
        places = [place + 0.4 * number - 0.2 for place in range(len(shown))]
        axes.barh(places, [each.get(label, 0) for label in shown], height=0.4, label=name, color=colour)
    axes.set_yticks(
        range(len(shown)), [label if len(label) <= 24 else f"{label[:23]}…" for label in shown], parse_math=False
    )
    axes.invert_yaxis()


def _draw_projections(axes: Axes, sides: Sequence[NDArray[np.float32]]) -> None:
    """The vectors of two groups by the two principal components of both."""
    together = np.concatenate(sides).astype(np.float64)
    _, _, components = np.linalg.svd(together - together.mean(axis=0), full_matrices=False)
    for name, colour, vectors in zip(SIDES, COLOURS, sides, strict=True):
        points = (vectors - together.mean(axis=0)) @ components[:2].T
        axes.scatter(points[:, 0], points[:, -1], s=6, alpha=0.6, label=name, color=colour)
