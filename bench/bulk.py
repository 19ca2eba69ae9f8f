"""`python -m bench.bulk`: the throughput of `gateway classify` as a share of one bulk request's with its images."""

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import httpx
import typer

from bench.photos import coffee, unlike_any
from gateway_cli.own_service import own_service
from gateway_client import Gateway
from gateway_client.batches import Loaded
from gateway_client.bulk.meter import Meter
from gateway_client.bulk.run import BulkJob, FileRun
from gateway_client.images import NamedImage
from gateway_client.wire import NDJSON, multipart
from gateway_local.paths import DEFAULT_MODEL_REPOSITORY

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def say(text: str) -> None:
    """A line of progress on stderr; stdout is for the result."""
    typer.echo(f"bench | {text}", err=True)


def write(folder: Path, images: int) -> None:
    """Write `images` images that no cache has seen."""
    photo = coffee().data
    folder.mkdir()
    for number in range(images):
        (folder / f"{number:06}.jpg").write_bytes(unlike_any(photo))


def one_request(url: str, folder: Path) -> float:
    """Images per second of one request with all of them, whose body is ready when the clock starts."""
    files = sorted(folder.iterdir())
    parts, content_type = multipart(
        [Loaded(number, NamedImage(path.name, path.read_bytes), path.read_bytes()) for number, path in enumerate(files)]
    )
    body = b"".join(parts)
    started = time.perf_counter()
    answer = httpx.post(
        f"{url}/predict", content=body, headers={"Content-Type": content_type, "Accept": NDJSON}, timeout=600
    )
    seconds = time.perf_counter() - started
    assert answer.text.count('"status":"ok"') == len(files), answer.text[-500:]
    return len(files) / seconds


def classified(url: str, folder: Path, out: Path) -> float:
    """Images per second of `gateway classify`, from listing the folder to the finished output file."""
    started = time.perf_counter()
    run = FileRun(BulkJob((str(folder),)), out, resume=False, overwrite=False)
    with Gateway(url) as gateway:
        run.run(gateway, _nothing)
    seconds = time.perf_counter() - started
    assert run.meter.failed == 0, run.meter.codes
    return run.meter.done / seconds


def _nothing(_: Meter) -> None: ...


@app.command()
def main(
    url: Annotated[str | None, typer.Option(help="A running service; without it one is started.")] = None,
    images: Annotated[int, typer.Option(help="Images in each measurement.", min=1, max=1000)] = 500,
    rounds: Annotated[int, typer.Option(help="Each measures both; the median ratio counts.", min=1)] = 5,
) -> None:
    """Measure both in turns, each time with images that no cache has seen, and print the ratio."""
    if url is None:
        with own_service(DEFAULT_MODEL_REPOSITORY, say) as own:
            measure(own, images, rounds)
    else:
        measure(url, images, rounds)


def measure(url: str, images: int, rounds: int) -> None:
    """Print the rates of each round, and the median ratio."""
    ratios = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder / "warm", min(images, 100))
        one_request(url, folder / "warm")
        for number in range(rounds):
            write(folder / f"a{number}", images)
            write(folder / f"b{number}", images)
            # They alternate, since the second one runs on a warmer machine.
            if number % 2:
                bulk = one_request(url, folder / f"a{number}")
                command = classified(url, folder / f"b{number}", folder / f"{number}.jsonl")
            else:
                command = classified(url, folder / f"b{number}", folder / f"{number}.jsonl")
                bulk = one_request(url, folder / f"a{number}")
            ratios.append(command / bulk)
            say(f"round {number + 1}: one request {bulk:.1f}/s, gateway classify {command:.1f}/s: {ratios[-1]:.3f}")
    print(f"gateway classify has {statistics.median(ratios):.3f} of the throughput of one bulk request")


if __name__ == "__main__":
    sys.exit(app())
