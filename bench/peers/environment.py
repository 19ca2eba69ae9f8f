"""The virtual environment in which the peers run, and the commands that start them."""

import os
import subprocess
import sys
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from bench.output import Progress
from bench.peers.network import LABELS, MODEL
from bench.services import Service, started
from gateway.triton.contract import CLASSIFIER
from gateway_local.hosts import free_port
from gateway_local.paths import PROJECT, default_cache_dir

REQUIREMENTS = ("litserve==0.2.19", "fastapi", "uvicorn[standard]", "python-multipart")
"""torch, torchvision and OpenCV come from the environment that measures, so that they are the same for all."""
COMMANDS = {
    "LitServe": "-m bench.peers.lit {port} {workers}",
    "naive FastAPI + torch": "-m uvicorn bench.peers.naive:app --log-level error --workers {workers} --port {port}",
}
"""Arguments of Python for each peer."""


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
    """A peer with the network of a model repository, one worker for each core; raises ServiceFailed."""
    port, workers = free_port(), len(os.sched_getaffinity(0))
    model = repository / CLASSIFIER
    variables = {MODEL: str(model / "1" / "model.pt"), LABELS: str(model / "labels.txt"), "PYTHONPATH": str(PROJECT)}
    command = [str(python), *COMMANDS[name].format(port=port, workers=workers).split()]
    with started(command, port, environment=variables, ready="/health") as service:
        yield service
