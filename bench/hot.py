"""`python -m bench.hot`: a single image's processor time in the gateway, before a Triton that answers at once.

`--beside ../before` measures another checkout's gateway as well, in turns.
"""

import statistics
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import psutil
import typer

from bench.http_load import HttpLoad
from bench.measurement import Measurement, accounted, percentile
from bench.photos import coffee
from bench.remote import Remote
from bench.scale import simulated
from bench.servers import gateway_at
from bench.simulated import LABELS
from bench.tables import Beside, Into, put, table

WARM_UP_SECONDS = 2.0
HERE = "this"


def main(
    beside: Beside = None,
    seconds: Annotated[float, typer.Option(help="Of each measurement.", min=0.1)] = 5.0,
    rounds: Annotated[int, typer.Option(help="Each measures every gateway once; medians count.", min=1)] = 7,
    concurrency: Annotated[int, typer.Option(help="Requests in flight.", min=1)] = 16,
    into: Into = None,
) -> None:
    """Print the gateway's processor time for a request with one image; GATEWAY_ variables reach the gateway."""
    photo = replace(coffee(), label=LABELS[0])
    measurements: dict[str, list[Measurement]] = {}
    with ExitStack() as stack:
        gateways = {
            name: stack.enter_context(_measured(tree))
            for name, tree in [(HERE, None), *((tree.name, tree) for tree in beside or [])]
        }
        for sender, _ in gateways.values():
            sender.call("run", [photo], WARM_UP_SECONDS, concurrency, 1)
        for number in range(rounds):
            for name, (sender, process) in gateways.items():
                measurement = accounted(
                    {"gateway": [process]}, partial(sender.call, "run", [photo], seconds, concurrency, 1)
                )
                measurements.setdefault(name, []).append(measurement)
                cost = measurement.cpu_milliseconds()["gateway"]
                print(f"bench | round {number + 1}: {name} {cost:.2f} ms, {measurement.rate:.0f}/s", file=sys.stderr)
    text = table(["gateway", "CPU an image", "least – most", "images/s", "p50", "beside this one"], _rows(measurements))
    print(text)
    if into is not None:
        put(into, "bench.hot", text)


@contextmanager
def _measured(tree: Path | None) -> Iterator[tuple[Remote, psutil.Process]]:
    """A gateway with a Triton that answers at once, who sends to it, and its process."""
    with (
        simulated(1, seconds=0) as triton,
        gateway_at(triton.addresses[0], tree) as (url, process_id),
        Remote(HttpLoad, url) as sender,
    ):
        yield sender, psutil.Process(process_id)


def _rows(measurements: dict[str, list[Measurement]]) -> Iterator[list[str]]:
    costs = {name: [each.cpu_milliseconds()["gateway"] for each in rounds] for name, rounds in measurements.items()}
    for name, rounds in measurements.items():
        latencies = [seconds for each in rounds for seconds in each.latencies_seconds]
        ratios = [mine / here for mine, here in zip(costs[name], costs[HERE], strict=True)]
        yield [
            name,
            f"{statistics.median(costs[name]):.2f} ms",
            f"{min(costs[name]):.2f} – {max(costs[name]):.2f}",
            f"{statistics.median(each.rate for each in rounds):.0f}",
            f"{1e3 * percentile(latencies, 50):.1f} ms",
            f"{statistics.median(ratios):.2f}",
        ]


if __name__ == "__main__":
    typer.run(main)
