"""The processor cores that this process may use."""

import os
from collections.abc import Iterator
from pathlib import Path

from gateway.machine.cgroups import CGROUPS, OWN, folders

CPUS = Path("/sys/devices/system/cpu")


def usable_cores(cgroups: Path = CGROUPS, own: Path = OWN, cpus: Path = CPUS) -> float:
    """The smallest of the physical cores in the CPU affinity and the CPU quotas of this process's control groups.

    Two hyper-threads of one core count as one: together they decode or compute little more than one alone.
    """
    physical = {_siblings(cpu, cpus) for cpu in os.sched_getaffinity(0)}
    return min(float(len(physical)), *_quotas(cgroups, own))


def _siblings(cpu: int, cpus: Path) -> str:
    """The CPUs that share a physical core with this one (Linux, Documentation/admin-guide/cputopology.rst)."""
    try:
        return (cpus / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text().strip()
    except OSError:
        return str(cpu)


def _quotas(cgroups: Path, own: Path) -> Iterator[float]:
    yield float("inf")
    for folder in folders("cpu", cgroups, own):
        # Version 2 has both numbers in one file, version 1 one file for each; "max" and -1 mean that there is no limit.
        for files in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
            try:
                quota, period = " ".join((folder / name).read_text() for name in files).split()
                if int(quota) > 0:
                    yield int(quota) / int(period)
            except (OSError, ValueError):
                continue
