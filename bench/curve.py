"""`python -m bench.curve`: processor time of an image by load (1 to 128 in flight) and size (0.0015 to 49 megapixels).

A cliff in a curve is a fault, or has a reason that docs/explanation/performance.md gives.
"""

import io
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from PIL import Image

from bench.candidates import STAGES
from bench.http_load import HttpLoad, labelled
from bench.measurement import Measure, Measurement, Series, accounted, in_turns
from bench.output import Into, progress, publish, table
from bench.photos import Photo, as_jpeg, coffee
from bench.remote import Remote
from bench.repository import repository
from bench.services import Service, gateway_up

IN_FLIGHT = (1, 2, 4, 8, 16, 32, 64, 128)
SIZES = (
    *((48, 32, 85), (150, 100, 90), (300, 200, 90), (600, 400, 95), (1200, 800, 90), (2400, 1600, 90)),
    *((4000, 3000, 85), (7000, 7000, 97)),
)
"""Width, height and JPEG quality of the photographs."""
SIZES_IN_FLIGHT = 8
WARM_UP_SECONDS = 12.0
SETTINGS = {"max_images_waiting": 128, "max_wait_seconds": 30}
"""By default, 32 images are in Triton and 64 wait, for 2 s at most; the others get 503."""
BY_NUMBER, BY_SIZE = "in flight", f"size, {SIZES_IN_FLIGHT} in flight"


def main(
    seconds: Annotated[float, typer.Option(help="Of each measurement.", min=0.1)] = 5.0,
    rounds: Annotated[int, typer.Option(help="Each measures everything once; medians count.", min=1)] = 3,
    model: Annotated[str, typer.Option(help="As for python -m bench.")] = "mobilenet-v3-small",
    figure: Annotated[Path | None, typer.Option(help="Draw both curves into this PNG or SVG.")] = None,
    into: Into = None,
) -> None:
    """Print the processor time of an image by stage, and draw it."""
    with (
        repository(model, progress) as models,
        gateway_up(models, settings=SETTINGS) as service,
        Remote(HttpLoad, service.url) as sender,
    ):
        photos = [labelled(service.url, photo) for photo in map(_photo, SIZES)]
        usual = labelled(service.url, coffee())
        sender.call("run", [usual], WARM_UP_SECONDS, 32, 1)
        subjects: dict[str, Measure] = {
            f"{number}": partial(_measure, service, sender, usual, number) for number in IN_FLIGHT
        }
        subjects |= {photo.name: partial(_measure, service, sender, photo, SIZES_IN_FLIGHT) for photo in photos}
        measured = in_turns(subjects, seconds, rounds, progress)
    curves: dict[str, Mapping[float, Series]] = {
        BY_NUMBER: {number: measured[f"{number}"] for number in IN_FLIGHT},
        BY_SIZE: {
            width * height / 1e6: measured[photo.name] for (width, height, _), photo in zip(SIZES, photos, strict=True)
        },
    }
    publish(_report(curves), into, "bench.curve")
    if figure is not None:
        _draw(curves, figure)


def _photo(form: tuple[int, int, int]) -> Photo:
    width, height, quality = form
    image = Image.open(io.BytesIO(coffee().data)).resize((width, height), Image.Resampling.BICUBIC)
    return Photo(f"{width}x{height}-{quality}.jpg", as_jpeg(image, quality=quality))


def _measure(service: Service, sender: Remote, photo: Photo, in_flight: int, seconds: float) -> Measurement:
    sender.call("run", [photo], min(1.0, seconds), in_flight, 1)
    return accounted(service.groups, lambda: sender.call("run", [photo], seconds, in_flight, 1))


def _report(curves: Mapping[str, Mapping[float, Series]]) -> str:
    header = ["", "images/s", "p50, ms", "p99, ms", *(f"CPU: {stage}, ms" for stage in STAGES), "CPU an image, ms"]
    rows = []
    for title, curve in curves.items():
        for x, series in curve.items():
            name = f"{x} {title}" if title == BY_NUMBER else f"{x:.2g} megapixels"
            times = (f"{series.cpu_milliseconds(stage):.2f}" for stage in (*STAGES, ""))
            latencies = (f"{series.latency_milliseconds(percent):.0f}" for percent in (50, 99))
            rows.append([name, f"{series.rate:.0f}", *latencies, *times])
    return table(header, rows)


def _draw(curves: Mapping[str, Mapping[float, Series]], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    for panel, (title, curve) in zip(panels, curves.items(), strict=True):
        x = list(curve)
        below = [0.0] * len(x)
        for stage in STAGES:
            above = [low + series.cpu_milliseconds(stage) for low, series in zip(below, curve.values(), strict=True)]
            panel.fill_between(x, below, above, label=stage, alpha=0.8)
            below = above
        panel.set_xscale("log", base=2 if title == BY_NUMBER else 10)
        panel.set_xticks(x if title == BY_NUMBER else [0.001, 0.01, 0.1, 1, 10, 100])
        panel.set_xticklabels([f"{each:g}" for each in panel.get_xticks()])
        panel.set_xlabel(
            "requests in flight" if title == BY_NUMBER else f"megapixels of a JPEG, {SIZES_IN_FLIGHT} in flight"
        )
        panel.set_ylabel("processor ms an image")
        panel.set_ylim(bottom=0)
        panel.grid(alpha=0.3)
    panels[1].set_yscale("symlog", linthresh=10)
    panels[0].legend(loc="upper right")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


if __name__ == "__main__":
    typer.run(main)
