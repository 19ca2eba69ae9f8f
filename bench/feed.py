"""`python -m bench.feed`: the service's cost per image around its network.

The network answers immediately, so the rest is what feeds a fast network, such as one on a GPU. The table has, for
single uploads and for one upload of 200 files, the processor time of each stage, the images/s that a core feeds, and
the number of calls to Triton. With `--tree` it compares other checkouts in turns, with ratios to the first one. It also
prints the rate of many single uploads that gateway/machine/capacity.py predicts for the cores of the service: within a
factor of PREDICTED_WITHIN on an idle machine.
"""

import shutil
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated

import httpx
import typer
from prometheus_client.parser import text_string_to_metric_families

from bench.candidates import Load, compare, cost_table, started
from bench.measurement import Measurement
from bench.output import Into, progress, publish
from bench.services import Service, gateway_up
from gateway.machine.capacity import Costs, plan
from gateway.machine.cores import usable_cores
from gateway.triton.contract import CLASSIFIER
from gateway_local.paths import DEFAULT_MODEL_REPOSITORY

CLASSES = 1_000
FILES_IN_BULK = 200
HERE = "this checkout"
PREDICTED_WITHIN = 1.5
"""The largest ratio of the predicted and the measured rate; beyond it, the exit code is 1."""


def main(
    seconds: Annotated[float, typer.Option(help="Of each measurement.", min=1)] = 10.0,
    rounds: Annotated[int, typer.Option(help="Each measures everything once.", min=1)] = 3,
    concurrency: Annotated[int, typer.Option(help="Single uploads in flight.", min=1)] = 32,
    tree: Annotated[list[Path] | None, typer.Option(help="Another checkout, measured in turns.", exists=True)] = None,
    into: Into = None,
) -> None:
    """Print processor milliseconds and calls per image, for this checkout and others."""
    loads = [
        Load("one at a time", 1),
        Load(f"{concurrency} in flight", concurrency),
        Load(f"{FILES_IN_BULK} files in one request", 1, FILES_IN_BULK),
    ]
    trees = {HERE: None, **{path.resolve().name: path.resolve() for path in tree or []}}
    with instant_network() as models, ExitStack() as stack:
        services = {name: gateway_up(models, tree=path) for name, path in trees.items()}
        running = started(stack, services, progress)
        measured = compare(running, loads, seconds, rounds, progress, count=calls_sent)
    base = list(trees)[1] if tree else HERE
    publish(cost_table(measured, base, "calls an image"), into, "bench.feed")
    ratio = statistics.median(predicted_rate(each) / each.rate for each in measured[loads[1]][HERE])
    typer.echo(f"predicted / measured images/s, {loads[1].title}: {ratio:.2f}")
    if not 1 / PREDICTED_WITHIN <= ratio <= PREDICTED_WITHIN:
        raise typer.Exit(1)


def predicted_rate(measured: Measurement) -> float:
    """The plan's rate for this network, on the cores that the other processes left to the service."""
    network_ms = max(0.01, 1e3 * measured.cpu_seconds.get(CLASSIFIER, 0.0) / measured.images)
    costs = Costs(network_ms=network_ms)
    return plan(max(0.1, usable_cores() - measured.others_cores), 0, costs).images_per_second


@contextmanager
def instant_network() -> Iterator[Path]:
    """The project's model repository with a network that knows one class and computes nothing."""
    import torch

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scores = torch.nn.functional.one_hot(torch.tensor(7), CLASSES).float()

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.scores.expand(images.shape[0], -1).contiguous()

    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        models = Path(folder) / "triton_models"
        shutil.copytree(
            DEFAULT_MODEL_REPOSITORY, models, ignore=shutil.ignore_patterns("model.pt", "cpu.*", "labels.txt")
        )
        (models / CLASSIFIER / "1").mkdir(exist_ok=True)
        torch.jit.trace(Network(), torch.zeros(1, 3, 224, 224)).save(str(models / CLASSIFIER / "1" / "model.pt"))
        (models / CLASSIFIER / "labels.txt").write_text("".join(f"class {number}\n" for number in range(CLASSES)))
        yield models


def calls_sent(service: Service) -> float:
    """The number of calls with clients' images that the gateway has sent to Triton."""
    families = text_string_to_metric_families(httpx.get(f"{service.url}/metrics").text)
    samples = (sample for family in families for sample in family.samples)
    return sum(sample.value for sample in samples if sample.name == "gateway_batch_images_count")


if __name__ == "__main__":
    typer.run(main)
