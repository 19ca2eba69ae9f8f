"""`python -m bench.bare`: a network that gets tensors of the gateway, beside the ensemble that decodes in Triton.

Both are the default model's network, with the same pixels: `ensemble_model` gets files, and `classifier` tensors.
"""

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from bench.candidates import Load, compare, cost_table, started
from bench.output import Into, progress, publish
from bench.services import gateway_up
from gateway.triton.contract import CLASSIFIER
from gateway_local.paths import DEFAULT_MODEL_REPOSITORY

FILE = f"""
[models.{CLASSIFIER}]
resize_size = [224, 224]
crop_size = 224
interpolation = "bicubic"
mean = [0.5, 0.5, 0.5]
std = [0.5, 0.5, 0.5]
labels = "{DEFAULT_MODEL_REPOSITORY / CLASSIFIER / "labels.txt"}"
"""


def main(
    seconds: Annotated[float, typer.Option(help="Of each measurement.", min=0.1)] = 8.0,
    rounds: Annotated[int, typer.Option(help="Each measures every service once; medians count.", min=1)] = 5,
    concurrency: Annotated[str, typer.Option(help="Requests in flight, with commas.")] = "1,32",
    into: Into = None,
) -> None:
    """Print latencies and processor time of a request with one image."""
    with ExitStack() as stack:
        path = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-bare-"))) / "models.toml"
        path.write_text(FILE)
        tensors = {"tensor_models_file": path, "model": CLASSIFIER}
        services = {
            "ensemble": gateway_up(DEFAULT_MODEL_REPOSITORY),
            "tensors": gateway_up(DEFAULT_MODEL_REPOSITORY, settings=tensors),
        }
        candidates = started(stack, services, progress)
        loads = [Load(f"{number} in flight", int(number)) for number in concurrency.split(",")]
        measured = compare(candidates, loads, seconds, rounds, progress)
    publish(cost_table(measured, "ensemble"), into, "bench.bare")


if __name__ == "__main__":
    typer.run(main)
