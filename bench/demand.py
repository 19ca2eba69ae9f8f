"""`python -m bench.demand`: models on demand against all models loaded, for Zipf-distributed requests.

Several real Tritons share a repository of small Python models, each with two processes, whose load takes a given time
and memory; gateways of their own are in front of them. Every model has the same network, so the answers are alike:
what differs is which of them is loaded. Each row is one run with fresh Tritons and gateways.
"""

import asyncio
import itertools
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import httpx
import typer
from prometheus_client.parser import text_string_to_metric_families

from bench.measurement import percentile
from bench.output import Into, progress, publish, table
from bench.photos import coffee, unlike_any
from bench.services import gateway_serve
from gateway.settings import MIB
from gateway.triton.contract import ENSEMBLE_MODEL
from gateway_local.paths import default_cache_dir
from gateway_local.runtime.base import TritonRuntime
from gateway_local.runtime.chooser import ensure_runtime
from gateway_local.server import EmbeddedTriton
from tests.gateway.triton.small_repository import MODEL_BYTES, write_models

TIMEOUT_SECONDS = 60.0
LOOKUPS = "gateway_model_lookups_total"


@dataclass
class Run:
    """The requests of one run: latencies of those that were answered, and statuses of all."""

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    lookups: Counter[str] = field(default_factory=Counter)
    loads: list[tuple[int, float, float]] = field(default_factory=list)
    """For each model and gateway, the number of its loads, and their p50 and p99 in seconds."""

    @property
    def hit_rate(self) -> float:
        """Share of the images whose model was loaded."""
        return self.lookups["loaded"] / max(1, self.lookups.total())


def main(
    models: Annotated[int, typer.Option(help="Models besides the default one.", min=1)] = 20,
    room: Annotated[int, typer.Option(help="Models for which each Triton has memory.", min=1)] = 5,
    tritons: Annotated[int, typer.Option(min=1)] = 2,
    gateways: Annotated[int, typer.Option(min=1)] = 2,
    skew: Annotated[float, typer.Option(help="Exponent of Zipf's law.", min=0.0)] = 1.1,
    clients: Annotated[int, typer.Option(help="Each sends one image after another.", min=1)] = 8,
    pause: Annotated[float, typer.Option(help="Seconds between a client's requests.", min=0.0)] = 0.1,
    seconds: Annotated[float, typer.Option(help="Of each run.", min=1)] = 45.0,
    load_seconds: Annotated[float, typer.Option(help="Time that a network takes to load.", min=0.0)] = 0.5,
    megabytes: Annotated[int, typer.Option(help="Memory of a network.", min=0)] = 50,
    into: Into = None,
) -> None:
    """Print requests that failed, the share of images whose model was loaded, latencies, and the cold starts."""
    runtime = ensure_runtime(default_cache_dir(), progress)
    with tempfile.TemporaryDirectory(prefix="bench-demand-") as folder:
        repository = Path(folder) / "models"
        names = write_models(repository, models, load_seconds, megabytes * MIB)
        runs = {}
        for title, on_demand in (("all loaded", False), (f"room for {room}", True)):
            progress(f"{title}: starting {tritons} Tritons and {gateways} gateways")
            budget = (room + 1) * (megabytes * MIB + MODEL_BYTES) if on_demand else None
            with _services(runtime, repository, tritons, gateways, budget) as urls:
                runs[title] = asyncio.run(_measure(urls, names, skew, clients, pause, seconds))
            if failed := runs[title].statuses.total() - runs[title].statuses[200]:
                progress(f"{title}: {failed} requests failed: {dict(runs[title].statuses)}")
    header = ["models", "requests", "failed", "hit rate", "p50 ms", "p99 ms", "loads", "cold start p50 s", "p99 s"]
    publish(table(header, (_row(title, run) for title, run in runs.items())), into, "bench.demand")
    if any(run.statuses.total() != run.statuses[200] for run in runs.values()):
        raise typer.Exit(1)


@contextmanager
def _services(
    runtime: TritonRuntime, repository: Path, tritons: int, gateways: int, budget_bytes: int | None
) -> Iterator[list[str]]:
    """The URLs of gateways over Tritons; with a budget, models are loaded on demand."""
    first = ("*",) if budget_bytes is None else (ENSEMBLE_MODEL, "sequence_model")
    with ExitStack() as stack:
        running = [
            stack.enter_context(
                EmbeddedTriton(runtime, repository, on_log=lambda _: None, cache_bytes=0, load_models=first)
            )
            for _ in range(tritons)
        ]
        for triton in running:
            triton.wait_ready()
        settings: dict[str, object] = {"triton_url": ",".join(triton.url for triton in running), "triton_aperture": 0}
        if budget_bytes is not None:
            settings |= {"models_loaded": "demand", "models_memory_bytes": budget_bytes}
            settings["model_repository"] = repository
        url = str(settings.pop("triton_url"))
        yield [stack.enter_context(gateway_serve(url, settings=settings)).url for _ in range(gateways)]


async def _measure(
    urls: Sequence[str], names: Sequence[str], skew: float, clients: int, pause: float, seconds: float
) -> Run:
    run, image = Run(), coffee().data
    weights = list(itertools.accumulate(1 / rank**skew for rank in range(1, len(names) + 1)))
    generator = random.Random(1)  # no secret; every run has the same requests
    async with httpx.AsyncClient(timeout=TIMEOUT_SECONDS, limits=httpx.Limits(max_connections=clients)) as http:
        until = time.perf_counter() + seconds

        async def client(number: int) -> None:
            while (began := time.perf_counter()) < until:
                (name,) = generator.choices(names, cum_weights=weights)
                url = f"{urls[number % len(urls)]}/predict"
                try:
                    files = {"files": ("coffee.jpg", unlike_any(image))}
                    status = (await http.post(url, params={"model": name}, files=files)).status_code
                except httpx.TransportError:
                    status = 0
                run.statuses[status] += 1
                if status == httpx.codes.OK:
                    run.latencies.append(time.perf_counter() - began)
                await asyncio.sleep(pause)

        began = time.perf_counter()
        await asyncio.gather(*map(client, range(clients)))
        run.seconds = time.perf_counter() - began
        for url in urls:
            for family in text_string_to_metric_families((await http.get(f"{url}/metrics")).text):
                for sample in family.samples:
                    if sample.name == LOOKUPS:
                        run.lookups[sample.labels["outcome"]] += int(sample.value)
            for model in (await http.get(f"{url}/models")).json()["models"]:
                if times := model["load_times"]:
                    run.loads.append((times["loads"], times["p50_seconds"], times["p99_seconds"]))
    return run


def _row(title: str, run: Run) -> tuple[str, ...]:
    failed = run.statuses.total() - run.statuses[200]
    latencies = [f"{percentile(run.latencies, percent) * 1e3:,.0f}" for percent in (50, 99)]
    loads = sum(number for number, _, _ in run.loads)
    cold = ("–", "–")
    if run.loads:
        # The median over models of the medians, and the worst of the others.
        cold = (f"{percentile([p50 for _, p50, _ in run.loads], 50):.2f}", f"{max(p99 for *_, p99 in run.loads):.2f}")
    rate = f"{run.hit_rate:.1%}" if run.lookups.total() else "–"
    return (title, f"{run.statuses.total():,}", str(failed), rate, *latencies, f"{loads:,}", *cold)


if __name__ == "__main__":
    typer.run(main)
