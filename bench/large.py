"""`python -m bench.large`: photographs of 12 megapixels, alone and beside small ones.

`--beside ../before` measures another checkout's gateway and preprocessor as well, in turns.
"""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from bench.candidates import Candidate, Load, started
from bench.http_load import HttpLoad
from bench.measurement import Measure, Measurement, Series, in_turns
from bench.output import Beside, Into, progress, publish, table
from bench.remote import Remote
from bench.repository import repository
from bench.services import Service, gateway_up
from gateway.triton.contract import DECODE_PARAMETER, ENSEMBLE_MODEL, EXACT, FAST, PREPROCESSOR

ALONE, BESIDE_SMALL = Load("alone", 8, megapixels=12), Load("beside small images", 4, megapixels=12)
SMALL = Load("small images", 8)
HEADER = ["", "12 MP images/s", "CPU an image", "times", "small beside large: p50", "times", "large meanwhile"]


def main(
    beside: Beside = None,
    seconds: Annotated[float, typer.Option(help="Of each measurement.", min=0.1)] = 10.0,
    rounds: Annotated[int, typer.Option(help="Each measures everything once; medians count.", min=1)] = 3,
    model: Annotated[str, typer.Option(help="As for python -m bench.")] = "mobilenet-v3-small",
    into: Into = None,
) -> None:
    """Print the rate of large images, and small ones' latency beside them; "times" is the ratio to the last row."""
    services = {decode: _service(model, decode, None) for decode in (EXACT, FAST)}
    services |= {path.resolve().name: _service(model, EXACT, path.resolve()) for path in beside or []}
    with ExitStack() as stack:
        running = started(stack, services, progress)
        subjects: dict[str, Measure] = {}
        for name, candidate in running.items():
            second = stack.enter_context(Remote(HttpLoad, candidate.service.url))
            subjects[f"{name}, alone"] = partial(candidate.measure, ALONE)
            subjects[f"{name}, mixed"] = partial(_mixed, candidate, second)
        measured = in_turns(subjects, seconds, rounds, progress)
    publish(table(HEADER, (_row(name, measured, list(services)[-1]) for name in services)), into, "bench.large")


@contextmanager
def _service(model: str, decode: str, tree: Path | None) -> Iterator[Service]:
    changes = [f"{ENSEMBLE_MODEL}.parameters.{DECODE_PARAMETER}.string_value={decode}"]
    with repository(model, changes, progress) as models:
        if tree is not None:
            shutil.rmtree(models / PREPROCESSOR)
            shutil.copytree(tree / "triton_models" / PREPROCESSOR, models / PREPROCESSOR)
        with gateway_up(models, tree=tree) as service:
            yield service


def _mixed(candidate: Candidate, second: Remote, seconds: float) -> Measurement:
    """Measure small images beside large ones, which `counted` has."""
    with candidate.service.turn():
        large = second.start("run", [candidate.photo(BESIDE_SMALL)], seconds, BESIDE_SMALL.in_flight, 1)
        measurement: Measurement = candidate.sender.call("run", [candidate.photo(SMALL)], seconds, SMALL.in_flight, 1)
        measurement.counted = large.result().images
    return measurement


def _row(name: str, measured: dict[str, Series], base: str) -> list[str]:
    alone, mixed = measured[f"{name}, alone"], measured[f"{name}, mixed"]
    p50 = mixed.latency_milliseconds(50)
    return [
        name,
        f"{alone.rate:.1f}",
        f"{alone.cpu_milliseconds():.0f} ms",
        str(alone.ratio(measured[f"{base}, alone"])),
        f"{p50:.0f} ms",
        f"{p50 / measured[f'{base}, mixed'].latency_milliseconds(50):.2f}",
        f"{sum(each.counted for each in mixed) / sum(each.seconds for each in mixed):.1f}/s",
    ]


if __name__ == "__main__":
    typer.run(main)
