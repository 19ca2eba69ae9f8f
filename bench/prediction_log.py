"""`python -m bench.prediction_log`: what the prediction log costs: no log, a share of 1 %, of 100 %, and with images.

Whole services with the default model, in turns; each image is one that no cache has seen.
"""

import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated

import httpx
import typer

from bench.candidates import Load, Measured, compare, started
from bench.measurement import Measurement, percentile
from bench.output import Into, progress, publish, table
from bench.services import Service, gateway_up
from gateway_local.paths import DEFAULT_MODEL_REPOSITORY

NONE = "no log"
WRITTEN = 'gateway_prediction_log_rows_total{outcome="written"} '
SETTINGS: Mapping[str, Mapping[str, object]] = {
    NONE: {},
    "1 %": {"log_predictions_share": 1},
    "100 %": {"log_predictions_share": 100},
    "100 % with images": {"log_predictions_share": 100, "log_predictions_images": True},
}


def main(
    seconds: Annotated[float, typer.Option(help="Of each measurement.", min=0.1)] = 8.0,
    rounds: Annotated[int, typer.Option(help="Each measures every service once; medians count.", min=1)] = 5,
    concurrency: Annotated[str, typer.Option(help="Requests in flight, with commas.")] = "1,8",
    into: Into = None,
) -> None:
    """Print latencies and processor time of a request with one image; the writer counts as the gateway."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-log-")))
        services = {
            name: gateway_up(DEFAULT_MODEL_REPOSITORY, settings=_settings(settings, folder / str(number)))
            for number, (name, settings) in enumerate(SETTINGS.items())
        }
        candidates = started(stack, services, progress)
        loads = [Load(f"{number} in flight", int(number)) for number in concurrency.split(",")]
        measured = compare(candidates, loads, seconds, rounds, progress, _rows)
    publish(_table(measured), into, "bench.prediction_log")


def _settings(settings: Mapping[str, object], folder: Path) -> dict[str, object]:
    """A file is written each second, so that the writer's whole work falls into the measurement."""
    return {"log_predictions": folder, "log_predictions_file_seconds": 1, **settings} if settings else {}


def _rows(service: Service) -> float:
    """The rows that a service has written."""
    lines = httpx.get(f"{service.url}/metrics", timeout=60).text.splitlines()
    return next((float(line.removeprefix(WRITTEN)) for line in lines if line.startswith(WRITTEN)), 0.0)


def _latency(each: Measurement, percent: int) -> float:
    return percentile(each.latencies_seconds, percent)


def _table(measured: Measured) -> str:
    """Latencies and processor times, each with its ratio to the service without a log (median, least and most)."""
    ratio_title = f"× {NONE}"
    header = [
        "load",
        "log",
        "images/s",
        "p50",
        ratio_title,
        "p99",
        ratio_title,
        "CPU an image",
        ratio_title,
        "rows/image",
    ]
    rows = []
    for load, services in measured.items():
        base = services[NONE]
        for name, series in services.items():
            cells = [load.title, name, f"{series.rate:.1f}"]
            for percent in (50, 99):
                ratio = series.ratio(base, partial(_latency, percent=percent))
                cells += [f"{series.latency_milliseconds(percent):.2f} ms", "1" if name == NONE else str(ratio)]
            cost = series.ratio(base, lambda each: each.cpu_milliseconds())
            cells += [f"{series.cpu_milliseconds():.3f} ms", "1" if name == NONE else str(cost)]
            cells.append(f"{sum(each.counted for each in series) / sum(each.images for each in series):.3f}")
            rows.append(cells)
    return table(header, rows)


if __name__ == "__main__":
    typer.run(main)
