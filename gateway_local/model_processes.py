"""The processes of a running service: their processor time and private memory."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

KIB = 1024
STUB = "triton_python_backend_stub"
"""The program that runs an instance of a Python model."""
PROC = Path("/proc")
TICKS = os.sysconf("SC_CLK_TCK")


class ServiceProcess(NamedTuple):
    """One process; bytes are memory without mapped files, now and at its peak (proc_pid_status(5))."""

    pid: int
    model: Path | None
    """The folder in the repository of the model that it runs; None for a process without one."""
    cpu_seconds: float
    own_bytes: int
    peak_bytes: int


def processes(session: int, proc: Path = PROC) -> Iterator[ServiceProcess]:
    """The processes of a session, of Triton or of the API, by the number of its first process."""
    for folder in proc.glob("[0-9]*"):
        try:
            # After the name in parentheses (proc_pid_stat(5)): the session is field 6, times are fields 14 and 15.
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) != session:
                continue
            program, *arguments = (folder / "cmdline").read_text().split("\0")
            lines = (folder / "status").read_text().splitlines()
            values = dict(line.split(":", 1) for line in lines if ":" in line)
            rss, peak, files = (int(values[name].split()[0]) * KIB for name in ("VmRSS", "VmHWM", "RssFile"))
        except (OSError, ValueError, LookupError):  # the process has ended
            continue
        # STUB REPOSITORY/MODEL/VERSION/FILE …; the repository may be one of links
        model = Path(arguments[0]).resolve().parents[1] if program.endswith(STUB) and arguments else None
        seconds = (int(fields[11]) + int(fields[12])) / TICKS
        yield ServiceProcess(int(folder.name), model, seconds, rss - files, max(rss, peak) - files)
