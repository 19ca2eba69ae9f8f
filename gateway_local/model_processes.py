"""The processes in which Triton's Python backend runs models, and the memory that they have of their own."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

KIB = 1024
STUB = "triton_python_backend_stub"
"""The program that runs an instance of a Python model."""
PROC = Path("/proc")


class ModelProcess(NamedTuple):
    """One process of a model; bytes are memory without mapped files, now and at its peak (proc_pid_status(5))."""

    folder: Path
    """The model's folder in the repository."""
    own_bytes: int
    peak_bytes: int


def model_processes(server_pid: int, proc: Path = PROC) -> Iterator[ModelProcess]:
    """The processes of the models of a tritonserver: its children."""
    for children in proc.glob(f"{server_pid}/task/*/children"):
        try:
            pids = children.read_text().split()
        except OSError:
            continue
        for pid in pids:
            if (found := _model_process(proc / pid)) is not None:
                yield found


def _model_process(folder: Path) -> ModelProcess | None:
    try:
        arguments = (folder / "cmdline").read_text().split("\0")
        # STUB REPOSITORY/MODEL/VERSION/FILE …
        if not arguments[0].endswith(STUB):
            return None
        lines = (folder / "status").read_text().splitlines()
        values = dict(line.split(":", 1) for line in lines if ":" in line)
        rss, peak, files = (int(values[name].split()[0]) * KIB for name in ("VmRSS", "VmHWM", "RssFile"))
        model = Path(arguments[1]).resolve().parents[1]  # the repository may be one of links
    except (OSError, ValueError, LookupError):  # the process has ended
        return None
    return ModelProcess(model, rss - files, max(rss, peak) - files)
