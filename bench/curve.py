"""`python -m bench.curve`: processor time of an image by load (1 to 128 in flight) and size (0.0015 to 49 megapixels).

A cliff in a curve is a fault, or has a reason that docs/explanation/performance.md gives.
"""

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from bench.candidates import OURS, STAGES, Load, Measured, compare, cost_table, started
from bench.output import Into, progress, publish
from bench.repository import repository
from bench.services import gateway_up

IN_FLIGHT = (1, 2, 4, 8, 16, 32, 64, 128)
SIZES = (
    *((48, 32, 85), (150, 100, 90), (300, 200, 90), (600, 400, 95), (1200, 800, 90), (2400, 1600, 90)),
    *((4000, 3000, 85), (7000, 7000, 97)),
)
"""Width, height and JPEG quality of the photographs."""
SIZES_IN_FLIGHT = 8
SETTINGS = {"max_images_waiting": 128, "max_wait_seconds": 30}
"""By default, 32 images are in Triton and 64 wait, for 2 s at most; the others get 503."""
BY_NUMBER: dict[float, Load] = {number: Load(f"{number} in flight", number) for number in IN_FLIGHT}
BY_SIZE: dict[float, Load] = {
    width * height / 1e6: Load(f"{width * height / 1e6:.2g} megapixels", SIZES_IN_FLIGHT, size=(width, height, quality))
    for width, height, quality in SIZES
}


def main(
    seconds: Annotated[float, typer.Option(help="Of each measurement.", min=0.1)] = 5.0,
    rounds: Annotated[int, typer.Option(help="Each measures everything once; medians count.", min=1)] = 3,
    model: Annotated[str, typer.Option(help="As for python -m bench.")] = "mobilenet-v3-small",
    figure: Annotated[Path | None, typer.Option(help="Draw both curves into this PNG or SVG.")] = None,
    into: Into = None,
) -> None:
    """Print the processor time of an image by stage, and draw it."""
    with repository(model, progress) as models, ExitStack() as stack:
        running = started(stack, {OURS: gateway_up(models, settings=SETTINGS)}, progress)
        measured = compare(running, [*BY_NUMBER.values(), *BY_SIZE.values()], seconds, rounds, progress)
    publish(cost_table(measured, OURS), into, "bench.curve")
    if figure is not None:
        _draw(measured, figure)


def _draw(measured: Measured, path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    for panel, loads in zip(panels, (BY_NUMBER, BY_SIZE), strict=True):
        x, is_size = list(loads), loads is BY_SIZE
        curve = [measured[load][OURS] for load in loads.values()]
        below = [0.0] * len(x)
        for stage in STAGES:
            above = [low + series.cpu_milliseconds(stage) for low, series in zip(below, curve, strict=True)]
            panel.fill_between(x, below, above, label=stage, alpha=0.8)
            below = above
        panel.set_xscale("log", base=10 if is_size else 2)
        panel.set_xticks([0.001, 0.01, 0.1, 1, 10, 100] if is_size else x)
        panel.set_xticklabels([f"{each:g}" for each in panel.get_xticks()])
        panel.set_xlabel(f"megapixels of a JPEG, {SIZES_IN_FLIGHT} in flight" if is_size else "requests in flight")
        panel.set_ylabel("processor ms an image")
        panel.set_ylim(bottom=0)
        panel.grid(alpha=0.3)
    panels[1].set_yscale("symlog", linthresh=10)
    panels[0].legend(loc="upper right")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


if __name__ == "__main__":
    typer.run(main)
