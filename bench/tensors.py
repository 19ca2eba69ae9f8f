"""`python -m bench.tensors`: fp32 and uint8 as the tensor between preprocessor and network, compared stage by stage."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated

import torch
import typer

from bench.candidates import Load, compare, cost_table, started
from bench.measurement import WrongAnswer
from bench.output import Into, progress, publish
from bench.repository import repository
from bench.services import Service, gateway_up
from gateway.triton.contract import CLASSIFIER
from gateway_local import cpu_network
from gateway_models.networks.adapted import Normalising
from gateway_models.networks.cpu_form import convert
from gateway_models.networks.export import EFFICIENTNET_LITE0, default_entry
from gateway_models.networks.torchscript import export_torchscript, load_torchscript
from gateway_models.repository.render import render
from gateway_models.repository.spec import ImageTensor

LOADS = [Load("one at a time", 1), Load("32 in flight", 32), Load("200 files in one request", 1, 200)]


def main(
    seconds: Annotated[float, typer.Option(help="Of each measurement.", min=0.1)] = 8.0,
    rounds: Annotated[int, typer.Option(help="Each measures everything once; medians count.", min=1)] = 3,
    model: Annotated[str, typer.Option(help="As for python -m bench.")] = "mobilenet-v3-small",
    into: Into = None,
) -> None:
    """Print what an image costs each stage where the network gets fp32, and where it gets uint8."""
    with ExitStack() as stack:
        services = {tensor.value: _service(model, tensor) for tensor in ImageTensor}
        running = started(stack, services, progress)
        labels = {name: candidate.photo(LOADS[0]).label for name, candidate in running.items()}
        if len(set(labels.values())) > 1:
            raise WrongAnswer(f"the two forms of the tensor have different labels: {labels}")
        measured = compare(running, LOADS, seconds, rounds, progress)
    publish(cost_table(measured, ImageTensor.FP32.value), into, "bench.tensors")


def convert_to_uint8(models: Path) -> None:
    """Give the network of a repository of `bench.repository` an input of uint8, in its configurations too."""
    entry = default_entry(EFFICIENTNET_LITE0).changed(tensor=ImageTensor.UINT8)
    for folder, text in render(entry, command="export").items():
        (models / folder / "config.pbtxt").write_text(text)
    path = models / CLASSIFIER / "1" / "model.pt"
    network = Normalising(load_torchscript(path), entry.preprocessing.mean, entry.preprocessing.std)
    side = entry.preprocessing.crop_size
    example = torch.randint(0, 256, (4, 3, side, side), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    export_torchscript(network, example, path)
    cpu_network.write(convert(path, entry.preprocessing, ImageTensor.UINT8), path)


@contextmanager
def _service(model: str, tensor: ImageTensor) -> Iterator[Service]:
    with repository(model, [], progress) as models:
        if tensor is ImageTensor.UINT8:
            convert_to_uint8(models)
        with gateway_up(models) as service:
            yield service


if __name__ == "__main__":
    typer.run(main)
