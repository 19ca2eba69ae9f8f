"""A Triton that serves some of a repository's models while a command runs."""

import os
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gateway.environment import load_settings
from gateway.machine.gpus import find_gpus
from gateway_local.devices import choose_devices
from gateway_local.memory_plan import machine_plan, sized_configs
from gateway_local.paths import default_cache_dir
from gateway_local.runtime.wheel import ensure_runtime
from gateway_local.server import EmbeddedTriton
from gateway_models.blocking_triton import BlockingTriton
from gateway_models.networks.isolation import Report

IMAGES_IN_FLIGHT = 256
"""More than any command sends concurrently."""


@contextmanager
def serving(
    repository: Path, models: tuple[str, ...], report: Report, *, url: str | None = None
) -> Iterator[BlockingTriton]:
    """Connect to the Triton at `url`, or start one with `models` and no cache; raises UserError."""
    if url is not None:
        with BlockingTriton(url) as triton:
            yield triton
        return
    runtime = ensure_runtime(default_cache_dir(), report)
    report(f"starting Triton with {', '.join(models) or 'no model'}")
    # The log is only shown if Triton fails to start.
    log: deque[str] = deque(maxlen=1)
    gpus = find_gpus()
    sizes = machine_plan(load_settings(), repository, gpus=gpus.usable)
    configs = sized_configs(repository, sizes)
    devices = choose_devices(configs, report, images_in_flight=IMAGES_IN_FLIGHT, gpus=lambda: gpus)
    with EmbeddedTriton(
        runtime,
        repository,
        on_log=log.append,
        load_models=models,
        cache_bytes=0,
        extra_arguments=devices.arguments,
        environment=devices.environment,
        sizes=sizes,
    ) as server:
        server.wait_ready(600)
        with BlockingTriton(server.url) as triton:
            triton.pid = server.pid
            yield triton


def cpu_seconds(pid: int) -> dict[int, float]:
    """The processor time so far of a Triton of `serving` and of each of its processes, by process id."""
    seconds: dict[int, float] = {}
    ticks = os.sysconf("SC_CLK_TCK")
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # After the name in parentheses, proc_pid_stat(5): state, parent, group, …, utime and stime.
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        if int(fields[2]) == pid:
            seconds[int(stat.parent.name)] = (int(fields[11]) + int(fields[12])) / ticks
    return seconds


def cpu_seconds_used(before: dict[int, float], after: dict[int, float]) -> float:
    """The processor time between two results of `cpu_seconds`, without processes that have ended between them.

    Processes of an earlier configuration end late: what they had used before must not be subtracted.
    """
    return sum(seconds - before.get(pid, 0.0) for pid, seconds in after.items())
