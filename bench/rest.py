"""`python -m bench.rest`: how long `gateway up` takes to be ready, and its cost while no client is connected.

Each round starts the service again; the first round prepares what later starts reuse. Times are medians of the
rounds, memory is their mean.
"""

import os
import time
from pathlib import Path
from statistics import median
from typing import Annotated

import psutil
import typer

from bench.output import progress, table
from bench.services import gateway_up
from gateway_local.paths import DEFAULT_MODEL_REPOSITORY

SETTLES_SECONDS = 65.0
"""A minute after the last request, probes become rarer."""
MIB = 2**20


def name_of(process: psutil.Process) -> str:
    """The role of a process of the service."""
    line = " ".join(process.cmdline())
    names = {
        "gateway_local.supervise": "supervisor",
        "gateway.worker": "worker",
        "gateway.decoder": "decoder",
        "/bin/sh": "reaper",
        "/bin/tritonserver": "Triton",
        "/preprocessor/": "preprocessors",
        "python_backend_stub": "networks",
    }
    return next((name for words, name in names.items() if words in line), line)


def cpu_seconds(pid: int) -> float:
    """The processor time of a process in nanoseconds' resolution (proc_pid_schedstat), which psutil has in ticks."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def main(
    repository: Annotated[Path, typer.Option(help="Folder of models.")] = DEFAULT_MODEL_REPOSITORY,
    rounds: Annotated[int, typer.Option(help="Starts.", min=1)] = 3,
    seconds: Annotated[float, typer.Option(help="How long the service at rest is measured.", min=1.0)] = 60.0,
    settles_seconds: Annotated[float, typer.Option(help="Wait before.", min=0.0)] = SETTLES_SECONDS,
    tree: Annotated[Path | None, typer.Option(help="Another checkout, whose code runs.")] = None,
) -> None:
    """Start `gateway up` several times, and print its time to ready, and its processor time and memory at rest."""
    ready: list[float] = []
    cpu: dict[str, list[float]] = {}
    memory: dict[str, list[float]] = {}
    for _ in range(rounds):
        began = time.monotonic()
        with gateway_up(repository, tree=tree) as service:
            ready.append(time.monotonic() - began)
            progress(f"ready after {ready[-1]:.2f} s")
            time.sleep(settles_seconds)
            processes = service.tree()
            before = {each.pid: cpu_seconds(each.pid) for each in processes}
            time.sleep(seconds)
            totals: dict[str, float] = {}
            for each in processes:
                name = name_of(each)
                used = (cpu_seconds(each.pid) - before[each.pid]) / seconds * 1000
                totals[name] = totals.get(name, 0.0) + used
                memory.setdefault(name, []).append(each.memory_full_info().uss / MIB)
            for name, used in totals.items():
                cpu.setdefault(name, []).append(used)
    print(f"ready after {median(ready):.2f} s (first {ready[0]:.2f}) with {os.cpu_count()} cores\n")
    rows = [[name, f"{median(cpu[name]):.1f}", f"{sum(memory[name]) / rounds:.0f}"] for name in cpu]
    sums = [sum(median(values) for values in cpu.values()), sum(map(sum, memory.values())) / rounds]
    print(table(["at rest", "ms of CPU per second", "MiB"], [*rows, ["all", f"{sums[0]:.1f}", f"{sums[1]:.0f}"]]))


if __name__ == "__main__":
    typer.run(main)
