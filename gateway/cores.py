"""The processor cores that this process may use."""

import os
from collections.abc import Iterator
from pathlib import Path

from gateway.cgroups import CGROUPS, OWN, folders


def usable_cores(cgroups: Path = CGROUPS, own: Path = OWN) -> float:
    """The smallest of the CPU affinity and the CPU quotas of this process's control group and all its ancestors."""
    return min(float(len(os.sched_getaffinity(0))), *_quotas(cgroups, own))


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
