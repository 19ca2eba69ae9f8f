"""Draws the dashboards of deploy/helm from a Prometheus: docs/images/dashboard-*.png, without Grafana.

.venv/bin/python docs/dashboards.py http://127.0.0.1:9090 [MINUTES]

Every panel runs its queries over the last MINUTES (default: 5). Panels without data are left out.
"""

import json
import sys
import time
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator
from PIL import Image

DASHBOARDS = Path(__file__).parents[1] / "deploy" / "helm" / "triton-image-gateway" / "files" / "dashboards"
IMAGES = Path(__file__).with_name("images")
STEP_SECONDS = 5
COLUMNS = 3
MOST_SERIES = 8
FORMATS = {
    "percentunit": lambda value: f"{100 * value:.3g} %",
    "s": lambda value: f"{1e3 * value:.3g} ms" if value < 1 else f"{value:.3g} s",
    "bytes": lambda value: f"{value / 2**20:.3g} MiB",
    "Bps": lambda value: f"{value / 2**20:.3g} MiB/s",
}

Curve = tuple[str, list[float], list[float]]


def query(url: str, expression: str, minutes: float) -> Iterator[tuple[dict[str, str], list[float], list[float]]]:
    """The labels of each series of an expression, its seconds before now, and its values."""
    expression = expression.replace("$__rate_interval", "30s").replace("$__range", f"{round(60 * minutes)}s")
    expression = expression.replace("$namespace", ".*").replace("$model", ".*")
    end = time.time()  # noqa: TID251 - Prometheus wants dates
    parameters = {"query": expression, "start": end - 60 * minutes, "end": end, "step": STEP_SECONDS}
    with urlopen(f"{url}/api/v1/query_range?{urlencode(parameters)}") as answer:  # noqa: S310 - a URL of the user
        for series in json.load(answer)["data"]["result"]:
            yield (
                series["metric"],
                [at - end for at, _ in series["values"]],
                [float(value) for _, value in series["values"]],
            )


def curves(url: str, panel: dict[str, Any], minutes: float) -> Iterator[Curve]:
    """The name, seconds before now and values of each series of a panel."""
    for target in panel["targets"]:
        for labels, seconds, values in query(url, target["expr"], minutes):
            name = target["legendFormat"]
            for label, value in labels.items():
                name = name.replace(f"{{{{{label}}}}}", value)
            yield name, seconds, values


def draw(axes: Axes, panel: dict[str, Any], series: list[Curve]) -> None:
    """Draw a panel: curves, or the last number of a single value."""
    shown = FORMATS.get(panel["fieldConfig"]["defaults"].get("unit", ""), lambda value: f"{value:.4g}")
    axes.set_title(panel["title"], loc="left", fontsize=9, fontweight="bold")
    if panel["type"] == "stat":
        axes.set_axis_off()
        axes.text(0.5, 0.45, shown(series[0][2][-1]), ha="center", va="center", fontsize=22, color="#0f766e")  # type: ignore[no-untyped-call]
        return
    for name, seconds, values in series[:MOST_SERIES]:
        axes.plot(seconds, values, linewidth=1.2, label=name)
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_formatter("{x:.0f} s")
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: shown(value)))  # type: ignore[no-untyped-call]
    axes.tick_params(labelsize=7)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=6, loc="best", framealpha=0.7)


def main() -> None:
    """Draw both dashboards."""
    url, minutes = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 5
    for path in sorted(DASHBOARDS.glob("*.json")):
        panels = [panel for panel in json.loads(path.read_text())["panels"] if panel["type"] in ("stat", "timeseries")]
        found = [(panel, list(curves(url, panel, minutes))) for panel in panels]
        found = [
            (panel, series)
            for panel, series in found
            if any(np.nan_to_num(values).max() > 0 for _, _, values in series)
        ]
        rows = -(-len(found) // COLUMNS)
        figure, grid = plt.subplots(rows, COLUMNS, figsize=(12, 2.1 * rows), layout="constrained", squeeze=False)
        for axes in grid.flat[len(found) :]:
            axes.set_axis_off()
        for axes, (panel, series) in zip(grid.flat, found, strict=False):
            draw(axes, panel, series)
        file = BytesIO()
        figure.savefig(file, dpi=100)
        small = Image.open(file).convert("RGB").quantize(128, dither=Image.Dither.NONE)
        small.save(IMAGES / f"dashboard-{path.stem}.png", optimize=True)


if __name__ == "__main__":
    main()
