"""`python -m bench.triton_deaths`: how often Triton ends while its models are reloaded, or their processes die.

Each row is a setting: the size of the shared-memory region of each model process, and the number of processes of each
step. A Triton with small Python models gets calls on several connections, while their files change and they are loaded
again (`reload`), or one of their processes is killed before that (`kill`), as a fault would end it. With `lock`, gdb
kills it at a moment when it holds the lock of its region. A Triton that ends is started again, and its log says why.
See docs/guides/rollouts.md.
"""

import os
import random
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Annotated

import numpy as np
import psutil
import typer
from tritonclient.grpc import InferenceServerClient, InferInput
from tritonclient.utils import InferenceServerException

from bench.output import Into, progress, publish, table
from gateway.settings import MIB
from gateway.triton.contract import ENSEMBLE_MODEL, RAW_IMAGE, RAW_IMAGE_LENGTH
from gateway_local.paths import default_cache_dir
from gateway_local.runtime.base import TritonRuntime
from gateway_local.runtime.chooser import ensure_runtime
from gateway_local.server import EmbeddedTriton
from tests.gateway.triton.small_repository import write_repository

STEPS = ("preprocessor", "net")
KILL_IN_LOCK = (
    "-batch",
    "-ex",
    "break pthread_mutex_unlock if *(int*)($rdi+16) & 16",
    "-ex",
    "continue",
    "-ex",
    "kill",
)
"""Stops x86-64 code at the release of a robust mutex, which those in shared memory are, and kills the process."""
CALL_SECONDS, START_SECONDS = 10.0, 60.0
PAUSE_SECONDS = 0.05
"""Time between two disturbances."""
CAUSES = ("lock_exception", "bad_alloc", "Signal (11)", "Signal (6)")
"""What the end of Triton's log may say, the most telling first."""


def main(
    regions: Annotated[str, typer.Option(help="MiB of each region, with commas.")] = "16,64",
    processes: Annotated[str, typer.Option(help="Processes of each step, with commas.")] = "1,4",
    disturb: Annotated[str, typer.Option(help="reload, kill or lock, with commas.")] = "reload,kill",
    seconds: Annotated[float, typer.Option(help="Of each row.", min=1)] = 60.0,
    connections: Annotated[int, typer.Option(min=1)] = 8,
    kilobytes: Annotated[int, typer.Option(help="Size of an image; eight are in a call.", min=1)] = 100,
    into: Into = None,
) -> None:
    """Print for each setting the calls, the disturbances, how often Triton ended, and what its log says."""
    runtime = ensure_runtime(default_cache_dir(), progress)
    rows = []
    for kind in disturb.split(","):
        for region in map(int, regions.split(",")):
            for count in map(int, processes.split(",")):
                progress(f"{kind}, regions of {region} MiB, {count} processes of each step")
                found = _run(runtime, kind, region, count, seconds, connections, kilobytes * 1_000)
                deaths = {cause: number for cause, number in found.items() if cause.startswith("ended")}
                ended = ", ".join(f"{number} × {cause}" for cause, number in deaths.items()) or "never"
                rows.append([kind, f"{region}", f"{count}", f"{found['ok']:,}", f"{found['failed']:,}",
                             f"{found['disturbed']:,}", ended])  # fmt: skip
                progress(" | ".join(rows[-1]))
    header = ["disturbance", "MiB a region", "processes a step", "calls", "failed", "disturbances", "Triton"]
    publish(table(header, rows), into, "bench.triton_deaths")


def _run(
    runtime: TritonRuntime, kind: str, region: int, count: int, seconds: float, connections: int, nbytes: int
) -> Counter[str]:
    """One row: calls by outcome, disturbances, and the causes of Triton's ends."""
    found: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="bench-deaths-") as folder:
        repository = write_repository(Path(folder) / "models")
        for step in STEPS:
            config = repository / step / "config.pbtxt"
            config.write_text(config.read_text().replace("count: 1", f"count: {count}"))
        lines: list[str] = []
        sizes = [f"--backend-config=python,shm-{name}-byte-size={region * MIB}" for name in ("default", "growth")]
        triton = EmbeddedTriton(runtime, repository, on_log=lines.append, cache_bytes=0, extra_arguments=sizes)
        ends = time.monotonic() + seconds
        try:
            while time.monotonic() < ends:
                lines.clear()
                triton.start()
                triton.wait_ready(START_SECONDS)
                with _calls(triton.url, connections, nbytes, found):
                    while time.monotonic() < ends and triton.alive:
                        found["disturbed"] += _disturb(kind, triton, repository)
                        time.sleep(PAUSE_SECONDS)
                if not triton.alive:
                    text = "\n".join(lines)
                    found[f"ended by {next((cause for cause in CAUSES if cause in text), 'unknown')}"] += 1
        finally:
            triton.stop(grace_seconds=5)
    return found


def _disturb(kind: str, triton: EmbeddedTriton, repository: Path) -> bool:
    """Kill one of the models' processes unless `kind` is reload, and reload them; returns whether that succeeded."""
    with suppress(psutil.Error, IndexError):
        children = psutil.Process(triton.pid).children(recursive=True)
        process = random.choice([each for each in children if "stub" in each.name()])
        if kind == "kill":
            process.kill()
        elif kind == "lock":
            subprocess.run(["gdb", "-p", str(process.pid), *KILL_IN_LOCK], capture_output=True, check=False)
    for step in STEPS:
        os.utime(repository / step / "1" / "model.py")
    with suppress(InferenceServerException), closing(InferenceServerClient(triton.url)) as client:
        client.load_model(ENSEMBLE_MODEL, client_timeout=CALL_SECONDS)
        return True
    return False


@contextmanager
def _calls(url: str, connections: int, nbytes: int, found: Counter[str]) -> Iterator[None]:
    """Call the ensemble from threads, and count the outcomes."""
    done = threading.Event()
    images, lengths = np.zeros((8, nbytes), np.uint8), np.full((8, 1), nbytes, np.int32)
    inputs = [
        InferInput(RAW_IMAGE, images.shape, "UINT8").set_data_from_numpy(images),
        InferInput(RAW_IMAGE_LENGTH, lengths.shape, "INT32").set_data_from_numpy(lengths),
    ]

    def call() -> None:
        with closing(InferenceServerClient(url)) as client:
            while not done.is_set():
                try:
                    client.infer(ENSEMBLE_MODEL, inputs, client_timeout=CALL_SECONDS)
                    found["ok"] += 1
                except InferenceServerException:
                    found["failed"] += 1
                    done.wait(PAUSE_SECONDS)

    threads = [threading.Thread(target=call, daemon=True) for _ in range(connections)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        done.set()
        for thread in threads:
            thread.join(2 * CALL_SECONDS)


if __name__ == "__main__":
    typer.run(main)
