"""`python -m bench.tensors`: what passes between preprocessor and network as fp32 beside uint8, stage by stage."""

import statistics
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import psutil
import torch
import typer

from bench.http_load import HttpLoad
from bench.limit import Loop
from bench.measurement import Measurement, accounted
from bench.photos import Photo, coffee
from bench.remote import Remote
from bench.repository import repository
from bench.servers import service
from bench.tables import Into, put, table
from gateway.triton.contract import CLASSIFIER
from gateway_models.networks.adapted import Normalising
from gateway_models.networks.export import EFFICIENTNET_LITE0, default_entry
from gateway_models.networks.torchscript import export_torchscript, load_torchscript
from gateway_models.repository.render import render
from gateway_models.repository.spec import ImageTensor

SINGLE, BULK = 32, 200
"""Requests in flight with one file each; files of the one request of the other measurement."""
WARM_UP_SECONDS = 4.0
STAGES = ("gateway", "Triton", "preprocessor", "classifier")
HEADER = ["", "one file each: images/s", "times", *(f"CPU: {stage}" for stage in STAGES), "in all", "times"]
HEADER += [f"{BULK} files: images/s", "times", "in all", "times"]
Groups = dict[str, list[psutil.Process]]


@dataclass
class Candidate:
    """A service with one form of the tensor, and what was measured of it."""

    groups: Groups
    sender: Remote
    photo: Photo
    single: list[Measurement] = field(default_factory=list)
    bulk: list[Measurement] = field(default_factory=list)

    def run(self, seconds: float) -> None:
        """Measure once: many requests with one file, then one with many."""
        self.single.append(self._measured(seconds, SINGLE, 1))
        self.bulk.append(self._measured(seconds, 1, BULK))

    def _measured(self, seconds: float, concurrency: int, files: int) -> Measurement:
        return accounted(self.groups, lambda: self.sender.call("run", [self.photo], seconds, concurrency, files))


def main(
    seconds: Annotated[float, typer.Option(help="Of each measurement.", min=0.1)] = 8.0,
    rounds: Annotated[int, typer.Option(help="Each measures everything once; medians count.", min=1)] = 3,
    model: Annotated[str, typer.Option(help="As for python -m bench.")] = "mobilenet-v3-small",
    into: Into = None,
) -> None:
    """Print what an image costs each stage where the network gets fp32, and where it gets uint8."""
    with ExitStack() as stack:
        candidates = {tensor: stack.enter_context(_candidate(model, tensor)) for tensor in ImageTensor}
        for number in range(rounds):
            for tensor, candidate in candidates.items():
                candidate.run(seconds)
                rates = f"{candidate.single[-1].rate:.0f}/s, {candidate.bulk[-1].rate:.0f}/s"
                _say(f"round {number + 1}: {tensor.value} {rates}")
    text = table(HEADER, _rows(candidates))
    print(text)
    if into is not None:
        put(into, "bench.tensors", text)


def of_pixels(models: Path) -> None:
    """Make the network of a repository that `bench.repository` wrote one for pixels, and its configurations too."""
    entry = default_entry(EFFICIENTNET_LITE0).changed(tensor=ImageTensor.UINT8)
    for folder, text in render(entry, command="export").items():
        (models / folder / "config.pbtxt").write_text(text)
    path = models / CLASSIFIER / "1" / "model.pt"
    network = Normalising(load_torchscript(path), entry.preprocessing.mean, entry.preprocessing.std)
    side = entry.preprocessing.crop_size
    example = torch.randint(0, 256, (4, 3, side, side), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    export_torchscript(network, example, path)


@contextmanager
def _candidate(model: str, tensor: ImageTensor) -> Iterator[Candidate]:
    with repository(model, [], _say) as models:
        # By the network as it was, so that the other form is held to its answers.
        with Remote(Loop, models) as loop:
            photo = replace(coffee(), label=loop.call("label", [coffee()])[0])
        if tensor is ImageTensor.UINT8:
            of_pixels(models)
        with service(models, cache_bytes=0, say=_say) as running, Remote(HttpLoad, running.http_url) as sender:
            sender.call("run", [photo], WARM_UP_SECONDS, SINGLE, 1)
            yield Candidate(dict(running.processes), sender, photo)


def _rows(candidates: dict[ImageTensor, Candidate]) -> Iterator[list[str]]:
    first = candidates[ImageTensor.FP32]
    for tensor, each in candidates.items():
        stages = [measurement.cpu_milliseconds() for measurement in each.single]
        yield [
            tensor.value,
            *_rate(each.single, first.single),
            *(f"{statistics.median(stage[name] for stage in stages):.2f} ms" for name in STAGES),
            *_cost(each.single, first.single),
            *_rate(each.bulk, first.bulk),
            *_cost(each.bulk, first.bulk),
        ]


def _rate(measurements: list[Measurement], first: list[Measurement]) -> tuple[str, str]:
    ratios = [mine.rate / theirs.rate for mine, theirs in zip(measurements, first, strict=True)]
    return (
        f"{statistics.median(each.rate for each in measurements):.0f}",
        f"{statistics.median(ratios):.2f}",
    )


def _cost(measurements: list[Measurement], first: list[Measurement]) -> tuple[str, str]:
    costs, others = (
        [sum(measurement.cpu_milliseconds().values()) for measurement in each] for each in (measurements, first)
    )
    ratios = [mine / theirs for mine, theirs in zip(costs, others, strict=True)]
    return f"{statistics.median(costs):.2f} ms", f"{statistics.median(ratios):.2f}"


def _say(text: str) -> None:
    print(f"bench | {text}", file=sys.stderr)


if __name__ == "__main__":
    typer.run(main)
