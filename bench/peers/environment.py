"""The virtual environment in which the peers run, and the commands that start them."""

import os
import subprocess
import sys
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from bench.output import Progress
from bench.peers.network import LABELS, MODEL, ONNX, RUNTIME, THREADS, TORCH
from bench.services import Service, started
from gateway.triton.contract import CLASSIFIER
from gateway_local.hosts import free_port
from gateway_local.paths import PROJECT, default_cache_dir

REQUIREMENTS = ("litserve==0.2.19", "fastapi", "uvicorn[standard]", "python-multipart")
"""torch, torchvision, ONNX Runtime and OpenCV come from the environment that measures, so they are the same for all."""
FILES = {TORCH: "model.pt", ONNX: "cpu.onnx"}
"""The network of a model repository for each runtime; this service runs the second on a CPU."""
_LITSERVE = "-m bench.peers.lit {port} {workers}"
_FASTAPI = "-m uvicorn bench.peers.naive:app --log-level error --workers {workers} --port {port}"


@dataclass(frozen=True, slots=True)
class Peer:
    """The command of a peer, and the runtime of its network."""

    arguments: str
    """Arguments of Python."""
    runtime: str
    """One of RUNTIMES."""
    tuned: bool = True
    """Whether it has a process of one thread for each core; else one process, with each library's own threads."""

    @property
    def group(self) -> str:
        """The group that it is compared in: AS_WRITTEN, or the peers tuned with its runtime."""
        return self.runtime if self.tuned else AS_WRITTEN


AS_WRITTEN = "as written"
PEERS = {
    "LitServe": Peer(_LITSERVE, TORCH),
    "naive FastAPI + torch": Peer(_FASTAPI, TORCH),
    "LitServe + ONNX Runtime": Peer(_LITSERVE, ONNX),
    "naive FastAPI + ONNX Runtime": Peer(_FASTAPI, ONNX),
    "naive FastAPI + torch, as written": Peer(_FASTAPI, TORCH, tuned=False),
    "naive FastAPI + ONNX Runtime, as written": Peer(_FASTAPI, ONNX, tuned=False),
}


def environment(progress: Progress) -> Path:
    """The Python of a virtual environment with the peers, made on the first call and kept in the user's cache."""
    folder = default_cache_dir() / "bench" / f"peers-{sys.version_info.major}.{sys.version_info.minor}"
    python = folder / "bin" / "python"
    installed = folder / "requirements.txt"
    if not (installed.is_file() and installed.read_text() == "\n".join(REQUIREMENTS)):
        progress(f"installing {', '.join(REQUIREMENTS)} into {folder}")
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *REQUIREMENTS], check=True)
        installed.write_text("\n".join(REQUIREMENTS))
    # Behind the peers' own packages on the path, so that only the missing ones are taken from this environment.
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "measured.pth").write_text(f"{Path(httpx.__file__).parents[1]}\n")
    return python


@contextmanager
def peer(name: str, python: Path, repository: Path) -> Iterator[Service]:
    """A peer with the network of a model repository; raises ServiceFailed."""
    model, started_by = repository / CLASSIFIER, PEERS[name]
    port, workers = free_port(), len(os.sched_getaffinity(0)) if started_by.tuned else 1
    variables = {
        MODEL: str(model / "1" / FILES[started_by.runtime]),
        RUNTIME: started_by.runtime,
        LABELS: str(model / "labels.txt"),
        THREADS: "1" if started_by.tuned else "",
        "PYTHONPATH": str(PROJECT),
    }
    command = [str(python), *started_by.arguments.format(port=port, workers=workers).split()]
    with started(command, port, environment=variables, ready="/health") as service:
        yield service
