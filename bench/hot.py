"""`python -m bench.hot`: a single image's processor time in the gateway, in front of a Triton that answers at once.

`--beside ../before` measures another checkout's gateway as well, in turns.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated

import typer

from bench.candidates import Load, compare, cost_table, started
from bench.output import Beside, Into, progress, publish
from bench.scale import simulated
from bench.services import Service, gateway_serve

HERE = "this checkout"


def main(
    beside: Beside = None,
    seconds: Annotated[float, typer.Option(help="Of each measurement.", min=0.1)] = 5.0,
    rounds: Annotated[int, typer.Option(help="Each measures every gateway once; medians count.", min=1)] = 7,
    concurrency: Annotated[int, typer.Option(help="Requests in flight.", min=1)] = 16,
    into: Into = None,
) -> None:
    """Print the gateway's processor time for a request with one image; GATEWAY_ variables reach the gateway."""
    trees = {HERE: None, **{path.resolve().name: path.resolve() for path in beside or []}}
    with ExitStack() as stack:
        running = started(stack, {name: _gateway(tree) for name, tree in trees.items()}, progress)
        measured = compare(running, [Load(f"{concurrency} in flight", concurrency)], seconds, rounds, progress)
    publish(cost_table(measured, list(trees)[1] if beside else HERE), into, "bench.hot")


@contextmanager
def _gateway(tree: Path | None) -> Iterator[Service]:
    with simulated(1, seconds=0) as triton, gateway_serve(triton.addresses[0], tree) as service:
        yield service


if __name__ == "__main__":
    typer.run(main)
