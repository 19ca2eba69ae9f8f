"""The processes in which Triton's Python backend runs models, and the memory that they have of their own."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

KIB = 1024
STUB = "triton_python_backend_stub"
"""The program that runs an instance of a Python model."""
PROC = Path("/proc")


class ModelProcess(NamedTuple):
    """One process of a model; bytes are memory without mapped files, now and at its peak (proc_pid_status(5))."""

    server_pid: int
    folder: Path
    """The model's folder in the repository."""
    own_bytes: int
    peak_bytes: int


def model_processes(pids: Iterable[int] | None = None, proc: Path = PROC) -> Iterator[ModelProcess]:
    """The processes of models among `pids`, by default among all processes."""
    for pid in _all(proc) if pids is None else pids:
        try:
            arguments = (proc / str(pid) / "cmdline").read_text().split("\0")
            # STUB REPOSITORY/MODEL/VERSION/FILE …, perhaps after a dynamic loader and its options
            program = next((index for index, argument in enumerate(arguments) if argument.endswith(STUB)), None)
            if program is None:
                continue
            lines = (proc / str(pid) / "status").read_text().splitlines()
            values = dict(line.split(":", 1) for line in lines if ":" in line)
            rss, peak, files = (int(values[name].split()[0]) * KIB for name in ("VmRSS", "VmHWM", "RssFile"))
            folder = Path(arguments[program + 1]).resolve().parents[1]  # the repository may be one of links
            parent = int(values["PPid"])
        except (OSError, ValueError, LookupError):  # the process has ended
            continue
        yield ModelProcess(parent, folder, rss - files, max(rss, peak) - files)


def own_bytes(repository: Path, proc: Path = PROC) -> dict[str, int]:
    """The memory of all processes of each model of a repository; where several Tritons run one, of the largest."""
    sums: dict[tuple[int, str], int] = defaultdict(int)
    for process in model_processes(proc=proc):
        if process.folder.parent == repository:
            sums[process.server_pid, process.folder.name] += process.own_bytes
    found: dict[str, int] = {}
    for (_, name), nbytes in sums.items():
        found[name] = max(found.get(name, 0), nbytes)
    return found


def _all(proc: Path) -> Iterator[int]:
    try:
        yield from (int(path.name) for path in proc.iterdir() if path.name.isdigit())
    except OSError:
        return
