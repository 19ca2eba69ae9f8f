"""Installs the peers apart, and measures each of them, and this service, alone on the machine."""

import os
import statistics
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import httpx
import psutil

from bench.http_load import HttpLoad
from bench.measurement import Measurement, accounted, percentile
from bench.peers.network import LABELS, MODEL
from bench.photos import Photo
from bench.remote import Remote
from bench.servers import STOP_SECONDS, check_answering, service, tail_of
from bench.tables import table
from gateway.triton.contract import CLASSIFIER
from gateway_local.hosts import free_port
from gateway_local.runtime import default_cache_dir

REQUIREMENTS = ("litserve==0.2.19", "fastapi", "uvicorn[standard]", "python-multipart")
"""torch, torchvision and OpenCV come from the environment that measures: the same for all."""
WARM_UP_SECONDS = 3.0
HEADER = ["service", "images/s", "beside this one", "CPU an image", "p50", "p99"]
ROOT = Path(__file__).parents[2]

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Running:
    """A service that answers, and all of its processes."""

    url: str
    processes: list[psutil.Process]


def environment(say: Say) -> Path:
    """The Python of a virtual environment with the peers, made on the first call."""
    folder = default_cache_dir() / "bench" / f"peers-{sys.version_info.major}.{sys.version_info.minor}"
    python = folder / "bin" / "python"
    wanted = "\n".join(REQUIREMENTS)
    kept = folder / "requirements.txt"
    if not (kept.is_file() and kept.read_text() == wanted):
        say(f"installing {', '.join(REQUIREMENTS)} into {folder}")
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *REQUIREMENTS], check=True)
        kept.write_text(wanted)
    # Behind the peers' own packages, so that only what they lack is taken from here, wherever that is today.
    (site,) = folder.glob("lib/python*/site-packages")
    ours = Path(httpx.__file__).parents[1]
    (site / "measured.pth").write_text(f"{ours}\n")
    return python


def measure(
    repository: Path, photos: list[Photo], seconds: float, rounds: int, concurrency: int, say: Say
) -> dict[str, list[Measurement]]:
    """The measurements of each service, which has the machine for itself."""
    python, workers = environment(say), len(os.sched_getaffinity(0))
    uvicorn = ["-m", "uvicorn", "bench.peers.naive:app", "--log-level", "error", "--workers", str(workers), "--port"]
    services: dict[str, Callable[[], AbstractContextManager[Running]]] = {
        "this service": lambda: _ours(repository, say),
        "LitServe": lambda: _peer(repository, lambda port: [python, "-m", "bench.peers.lit", str(port), str(workers)]),
        "naive FastAPI + torch": lambda: _peer(repository, lambda port: [python, *uvicorn, str(port)]),
    }
    measurements: dict[str, list[Measurement]] = {}
    for name, start in services.items():
        with start() as running, Remote(HttpLoad, running.url) as sender:
            labelled = [replace(photo, label=label(running.url, photo)) for photo in photos]
            sender.call("run", labelled, WARM_UP_SECONDS, concurrency, 1)
            for number in range(rounds):
                groups = {"all": running.processes}
                measurement = accounted(groups, partial(sender.call, "run", labelled, seconds, concurrency, 1))
                measurements.setdefault(name, []).append(measurement)
                say(f"round {number + 1} of {rounds}: {name} {measurement.rate:.0f}/s")
    return measurements


def report(measurements: dict[str, list[Measurement]]) -> str:
    """The table of docs/explanation/performance.md."""
    rates = {name: statistics.median(each.rate for each in rounds) for name, rounds in measurements.items()}
    ours = rates["this service"]
    return table(HEADER, (_row(name, rounds, rates[name], ours) for name, rounds in measurements.items()))


def label(url: str, photo: Photo) -> str:
    """What a service itself sees: where it resizes in its own way, that may be another class of two that are alike."""
    answer = httpx.post(f"{url}/predict", files={"files": (photo.name, photo.data, "image/jpeg")}, timeout=60)
    return str(answer.raise_for_status().json()["results"][0]["predictions"][0]["label"])


@contextmanager
def _ours(repository: Path, say: Say) -> Iterator[Running]:
    with service(repository, cache_bytes=0, say=say) as running:
        yield Running(running.http_url, [process for group in running.processes.values() for process in group])


@contextmanager
def _peer(repository: Path, command: Callable[[int], list[object]]) -> Iterator[Running]:
    port = free_port()
    files = {MODEL: repository / CLASSIFIER / "1" / "model.pt", LABELS: repository / CLASSIFIER / "labels.txt"}
    variables = {**os.environ, **{name: str(path) for name, path in files.items()}, "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            list(map(str, command(port))), env=variables, stdout=sys.stderr, stderr=log, start_new_session=True
        )
        try:
            check_answering(process, port, "/health", lambda: tail_of(log.fileno()))
            parent = psutil.Process(process.pid)
            yield Running(f"http://127.0.0.1:{port}", [parent, *parent.children(recursive=True)])
        finally:
            if process.poll() is None:
                parent = psutil.Process(process.pid)
                every = [parent, *parent.children(recursive=True)]
                process.terminate()
                _, alive = psutil.wait_procs(every, STOP_SECONDS)
                for each in alive:
                    each.kill()
            process.wait()


def _row(name: str, rounds: list[Measurement], rate: float, ours: float) -> list[str]:
    latencies = [seconds for measurement in rounds for seconds in measurement.latencies_seconds]
    return [
        name,
        f"{rate:.0f}",
        f"{rate / ours:.2f}",
        f"{statistics.median(measurement.cpu_milliseconds()['all'] for measurement in rounds):.1f} ms",
        f"{1e3 * percentile(latencies, 50):.0f} ms",
        f"{1e3 * percentile(latencies, 99):.0f} ms",
    ]
