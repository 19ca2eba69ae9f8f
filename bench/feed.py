"""`python -m bench.feed`: what the service costs around its network, per image.

The network answers at once, so the rest is what a fast network (a GPU) must be fed by. For single uploads and for one
upload of 200 files it prints the processor time of each part, and how many calls the gateway sends to Triton.
"""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import httpx
import typer
from prometheus_client.parser import text_string_to_metric_families

from bench.http_load import HttpLoad
from bench.measurement import Measurement, accounted
from bench.photos import Photo, coffee
from bench.remote import Remote
from bench.servers import Service, service
from bench.tables import table
from gateway.triton.contract import CLASSIFIER
from gateway_local.paths import DEFAULT_MODEL_REPOSITORY

CLASSES = 1_000
FILES_IN_BULK = 200
WARM_UP_SECONDS = 12.0
"""Longer than the gateway keeps what it has read of Triton's statistics."""
PARTS = ("gateway", "Triton", "preprocessor", "classifier")


def main(
    seconds: Annotated[float, typer.Option(help="Of each measurement.", min=1)] = 10.0,
    rounds: Annotated[int, typer.Option(help="Each measures everything once.", min=1)] = 2,
    concurrency: Annotated[int, typer.Option(help="Single uploads in flight.", min=1)] = 32,
    tree: Annotated[list[Path] | None, typer.Option(help="Other checkouts, measured in turns with this one.")] = None,
) -> None:
    """Print processor milliseconds and calls per image, for this checkout and others."""
    trees = [Path.cwd(), *(tree or [])]
    loads = {"alone": (1, 1), f"{concurrency} at once": (concurrency, 1), f"{FILES_IN_BULK} files": (1, FILES_IN_BULK)}
    rows = []
    with instant_network() as models:
        for number in range(rounds):
            for checkout in trees:
                with ExitStack() as stack:
                    running = stack.enter_context(service(models, cache_bytes=0, say=_say, tree=checkout))
                    sender = stack.enter_context(Remote(HttpLoad, running.http_url))
                    photos = [answered(running.http_url, coffee())]
                    sender.call("run", photos, WARM_UP_SECONDS, 8, 1)
                    for name, (in_flight, files) in loads.items():
                        _say(f"round {number + 1}, {checkout}: {name}")
                        measured = _measure(running, sender, photos, seconds, in_flight, files)
                        rows.append([f"{checkout.name}, {name}", *measured])
    print(table(["", "images/s per core", "calls per image", "CPU ms", *PARTS], sorted(rows)))


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
        shutil.copytree(DEFAULT_MODEL_REPOSITORY, models, ignore=shutil.ignore_patterns("model.pt", "labels.txt"))
        (models / CLASSIFIER / "1").mkdir(exist_ok=True)
        torch.jit.trace(Network(), torch.zeros(1, 3, 224, 224)).save(str(models / CLASSIFIER / "1" / "model.pt"))
        (models / CLASSIFIER / "labels.txt").write_text("".join(f"class {number}\n" for number in range(CLASSES)))
        yield models


def answered(url: str, photo: Photo) -> Photo:
    """The photograph with the label that the service gives it."""
    response = httpx.post(f"{url}/predict", files={"f": (photo.name, photo.data)}, timeout=60).raise_for_status()
    return replace(photo, label=response.json()["results"][0]["predictions"][0]["label"])


def _measure(
    running: Service, sender: Remote, photos: Sequence[Photo], seconds: float, concurrency: int, files: int
) -> list[str]:
    before = calls_sent(running.http_url)
    measurement: Measurement = accounted(
        running.processes, lambda: sender.call("run", photos, seconds, concurrency, files)
    )
    calls = calls_sent(running.http_url) - before
    spent = measurement.cpu_milliseconds()
    in_all = sum(spent.values())
    parts = [f"{spent.get(part, 0):.2f}" for part in PARTS]
    return [f"{1e3 / in_all:.0f}", f"{calls / measurement.images:.2f}", f"{in_all:.2f}", *parts]


def calls_sent(url: str) -> float:
    """The calls with images of clients that the gateway has sent to Triton."""
    families = text_string_to_metric_families(httpx.get(f"{url}/metrics").text)
    samples = (sample for family in families for sample in family.samples)
    return sum(sample.value for sample in samples if sample.name == "gateway_batch_images_count")


def _say(text: str) -> None:
    typer.echo(f"feed | {text}", err=True)


if __name__ == "__main__":
    typer.run(main)
