"""`python -m bench.reload`: what light calls of one model wait while three versions of another one are reloaded.

A real Triton out of the wheel, in turns with each number of load threads. The versions run by TorchScript, whose
processes take longest to start; their configurations are changed, so that one request to load starts all of them.
"""

import asyncio
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import httpx
import typer

from bench.measurement import percentile
from bench.output import Into, progress, publish, table
from bench.photos import coffee, unlike_any
from bench.repository import repository
from bench.services import gateway_serve
from gateway.triton.contract import CLASSIFIER, ENSEMBLE_MODEL
from gateway_local.paths import default_cache_dir
from gateway_local.runtime.base import TritonRuntime
from gateway_local.runtime.chooser import ensure_runtime
from gateway_local.server import EmbeddedTriton
from gateway_models.blocking_triton import BlockingTriton

NAME, VERSIONS = "reloaded", 3
TIMEOUT_SECONDS = 120.0
PREPARED = ["--resize=224,224", "--crop=224", "--interpolation=bicubic", "--mean=0.5,0.5,0.5", "--std=0.5,0.5,0.5"]
Work = Callable[[], Awaitable[object]]


@dataclass
class Calls:
    """The calls of one row: latencies in seconds, and how many were not answered with 200."""

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    failed: int = 0

    def row(self, title: str) -> list[str]:
        """The row's cells."""
        milliseconds = [1e3 * percentile(self.latencies, 99), 1e3 * max(self.latencies)]
        return [
            title,
            f"{self.seconds:.0f}",
            str(len(self.latencies)),
            str(self.failed),
            f"{1e3 * statistics.median(self.latencies):.0f}",
            *(f"{each:.0f}" for each in milliseconds),
        ]


def add_versions(folder: Path) -> None:
    """Add the versions of the reloaded model, copies of the default one; raises CalledProcessError."""
    classifier = folder / CLASSIFIER
    source = [str(classifier / "1" / "model.pt"), f"--name={NAME}", f"--labels={classifier / 'labels.txt'}", *PREPARED]
    for version in range(1, VERSIONS + 1):
        progress(f"adding version {version}")
        options = [f"--version={version}", "--cpu-runtime=torchscript", f"--model-repository={folder}"]
        command = [sys.executable, "-m", "gateway_cli", "model", "add", *source, *options]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def change(folder: Path) -> None:
    """Change the configurations of the steps, so that Triton reloads them."""
    for step in ("preprocessor", "classifier"):
        path = folder / f"{NAME}_{step}" / "config.pbtxt"
        text = re.sub(r"# changed at .*\n", "", path.read_text())
        path.write_text(f"# changed at {time.monotonic()}\n{text}")


async def calls_during(url: str, rate: float, work: Work) -> Calls:
    """Send images at a steady rate until `work` is done."""
    calls, image = Calls(), coffee().data
    async with httpx.AsyncClient(timeout=TIMEOUT_SECONDS) as http, asyncio.TaskGroup() as group:

        async def call() -> None:
            began = time.perf_counter()
            files = {"files": ("coffee.jpg", unlike_any(image))}
            answer = await http.post(f"{url}/predict", params={"model": ENSEMBLE_MODEL}, files=files)
            calls.failed += answer.status_code != httpx.codes.OK
            calls.latencies.append(time.perf_counter() - began)

        async def send() -> None:
            while True:
                group.create_task(call())
                await asyncio.sleep(1 / rate)

        began, sending = time.perf_counter(), group.create_task(send())
        await work()
        calls.seconds = time.perf_counter() - began
        sending.cancel()
    return calls


@contextmanager
def service(runtime: TritonRuntime, folder: Path, threads: int) -> Iterator[tuple[str, EmbeddedTriton]]:
    """A gateway and its Triton with a number of load threads; yields the gateway's URL, and Triton."""
    option = f"--model-load-thread-count={threads}"
    with EmbeddedTriton(runtime, folder, on_log=lambda _: None, cache_bytes=0, extra_arguments=[option]) as triton:
        triton.wait_ready()
        with gateway_serve(triton.url) as running:
            yield running.url, triton


def main(
    threads: Annotated[str, typer.Option(help="Numbers of load threads, compared in turns.")] = "4,2",
    rounds: Annotated[int, typer.Option(min=1)] = 2,
    rate: Annotated[float, typer.Option(help="Calls a second.", min=0.1)] = 6.0,
    into: Into = None,
) -> None:
    """Print latencies of calls before and while three versions are reloaded."""
    numbers = [int(each) for each in threads.split(",")]
    runtime = ensure_runtime(default_cache_dir(), progress)
    rows = []
    with repository("efficientnet-lite0", (), progress) as folder:
        add_versions(folder)
        for turn in range(rounds):
            for number in numbers if turn % 2 == 0 else numbers[::-1]:
                with service(runtime, folder, number) as (url, triton):
                    progress(f"{number} load threads")

                    def load() -> None:
                        change(folder)
                        with BlockingTriton(triton.url) as client:
                            client.load(NAME, *(f"{NAME}.v{version}" for version in range(1, VERSIONS + 1)))

                    quiet = asyncio.run(calls_during(url, rate, lambda: asyncio.sleep(5)))
                    busy = asyncio.run(calls_during(url, rate, lambda: asyncio.to_thread(load)))
                rows += [quiet.row(f"{number} threads, no load"), busy.row(f"{number} threads, reloading")]
    header = ["run", "seconds", "calls", "failed", "p50 ms", "p99 ms", "longest ms"]
    publish(table(header, rows), into, "bench.reload")


if __name__ == "__main__":
    typer.run(main)
