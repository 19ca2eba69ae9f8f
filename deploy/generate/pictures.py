"""Draw the dashboards' panels with matplotlib, from the same queries, out of a Prometheus that has data.

    python -m deploy.generate.pictures http://127.0.0.1:9090 --minutes 5

For machines without a Grafana; the pictures in docs/images are made by it.
"""

import argparse
import io
import time
from pathlib import Path

import httpx
import matplotlib as mpl
import numpy as np
from PIL import Image

from deploy.generate import DEPLOY
from deploy.generate.dashboards import BOARDS
from deploy.generate.panels import Board, Panel, Query

mpl.use("Agg")
from matplotlib import pyplot as plt  # after the choice of a canvas without a screen
from matplotlib.axes import Axes

IMAGES = DEPLOY.parent / "docs" / "images"
POINTS = 150
UNITS = {"percentunit": "%", "s": "s", "ops": "/s", "reqps": "/s", "Bps": "B/s", "short": ""}
Series = list[tuple[str, np.ndarray, np.ndarray]]


def series(url: str, query: Query, minutes: float) -> Series:
    """Return label, times and values of each series of a query, with `All` for every variable."""
    text = query.expression.replace("$sel", 'namespace=~".*"').replace("$model", ".*").replace("$window", "20s")
    end = time.time()  # noqa: TID251  # the wall clock is what Prometheus uses
    answer = httpx.post(
        f"{url}/api/v1/query_range",
        data={
            "query": text.replace("$__range", f"{minutes * 60:.0f}s"),
            "start": end - minutes * 60,
            "end": end,
            "step": minutes * 60 / POINTS,
        },
        timeout=60,
    ).raise_for_status()
    found: Series = []
    for each in answer.json()["data"]["result"]:
        label = query.legend
        for name, value in each["metric"].items():
            label = label.replace("{{" + name + "}}", value)
        times, values = np.array(each["values"], dtype=float).T
        found.append((label, times - end, values))
    return sorted(found, key=lambda each: each[0])


def _stat(axes: Axes, panel: Panel, drawn: Series) -> None:
    axes.axis("off")
    alone = len(panel.queries) == len(drawn) == 1 and "{{" not in panel.queries[0].legend
    lines = []
    for label, _, values in drawn:
        percent = panel.unit == "percentunit"
        number = f"{values[-1] * (100 if percent else 1):.3g}{UNITS[panel.unit]}"
        lines.append(number if alone else f"{number}\n{label}")
    axes.text(0.5, 0.5, "\n".join(lines) or "no data", ha="center", va="center", fontsize=15, color="#1f6f43")


def _heatmap(axes: Axes, drawn: Series, figure_minutes: float) -> None:
    ordered = sorted((each for each in drawn if each[0] != "+Inf"), key=lambda each: float(each[0]))
    times = ordered[0][1]
    counts = np.diff(np.array([np.interp(times, at, values) for _, at, values in ordered]), axis=0, prepend=0)
    edges = [0.0, *(float(label) for label, *_ in ordered)]
    grid = np.append(times, 0)
    axes.pcolormesh(grid, edges, counts.clip(0), cmap="YlOrRd")
    axes.set_xlim(-figure_minutes * 60, 0)


def _lines(axes: Axes, panel: Panel, drawn: Series, minutes: float) -> None:
    scale = 100 if panel.unit == "percentunit" else 1
    if panel.stacked and drawn:
        times = max((each[1] for each in drawn), key=len)
        values = [np.interp(times, at, numbers, left=0, right=0) * scale for _, at, numbers in drawn]
        axes.stackplot(times, values, labels=[label for label, *_ in drawn], alpha=0.8)
    else:
        for label, times, values in drawn:
            axes.plot(times, values * scale, label=label, linewidth=1.2)
    axes.set_xlim(-minutes * 60, 0)
    axes.set_ylim(bottom=0, top=None if panel.maximum is None else panel.maximum * scale * 1.05)
    axes.set_ylabel(UNITS[panel.unit], fontsize=7)
    if drawn:
        axes.legend(fontsize=6, loc="upper left", framealpha=0.6)
    else:
        axes.text(0.5, 0.5, "no data", transform=axes.transAxes, ha="center", color="grey")


def draw(board: Board, url: str, minutes: float, path: Path) -> None:
    """One dashboard as one PNG, laid out as Grafana does."""
    rows = [row.panels[at : at + 24 // row.panels[0].span] for row in board.rows for at in _starts(row.panels)]
    heights = [0.5 if row[0].kind == "stat" and len(row) > 3 else 1 for row in rows]
    figure = plt.figure(figsize=(15, 2.5 * sum(heights)), dpi=70, layout="constrained")
    figure.suptitle(board.title, fontsize=13)
    grid = figure.add_gridspec(len(rows), 24, height_ratios=heights)
    for line, panels in enumerate(rows):
        column = 0
        for panel in panels:
            axes = figure.add_subplot(grid[line, column : column + panel.span])
            column += panel.span
            axes.set_title(panel.title, fontsize=9)
            axes.tick_params(labelsize=6)
            axes.grid(visible=True, linewidth=0.3)
            drawn = [each for query in panel.queries for each in series(url, query, minutes)]
            if panel.kind == "stat":
                _stat(axes, panel, drawn)
            elif panel.kind == "heatmap" and drawn:
                _heatmap(axes, drawn, minutes)
            else:
                _lines(axes, panel, drawn, minutes)
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    plt.close(figure)
    # Half the bytes, without a visible difference.
    Image.open(picture).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)


def _starts(panels: tuple[Panel, ...]) -> range:
    return range(0, len(panels), 24 // panels[0].span)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="address of Prometheus")
    parser.add_argument("--minutes", type=float, default=5, help="how much of the past is shown")
    options = parser.parse_args()
    for each_board in BOARDS:
        draw(each_board, options.url, options.minutes, IMAGES / f"dashboard-{each_board.name}.png")
