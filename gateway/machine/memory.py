"""Memory that this process may still use: of the machine, or less if a control group limits it."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gateway.machine.cgroups import CGROUPS, OWN, folders

MEMINFO = Path("/proc/meminfo")
MACHINE = "this machine"
KIB = 1024
NO_LIMIT_BYTES = 2**60
"""Control groups of version 1 report a number at least this large if there is no limit."""
VERSIONS = (
    ("memory.max", "memory.current", ("inactive_file", "active_file")),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")),
)
"""Files with a control group's limit and usage, and the fields of memory.stat that the kernel can reclaim."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory in bytes."""

    limit_bytes: int
    free_bytes: int
    """Free memory, including file caches that the kernel can reclaim."""
    where: str
    """The source of the limit: MACHINE, or the file of a control group."""


def usable_memory(cgroups: Path = CGROUPS, own: Path = OWN, meminfo: Path = MEMINFO) -> Memory | None:
    """The least free memory of the machine and this process's control groups; None if neither is known."""
    found = [*_machine(meminfo), *_groups(cgroups, own)]
    return min(found, key=lambda memory: memory.free_bytes, default=None)


def memory_limit(cgroups: Path = CGROUPS, own: Path = OWN, meminfo: Path = MEMINFO) -> int | None:
    """The lowest memory limit in bytes, regardless of current usage; None if unknown."""
    found = [*_machine(meminfo), *_groups(cgroups, own)]
    return min((memory.limit_bytes for memory in found), default=None)


def _machine(meminfo: Path) -> Iterator[Memory]:
    try:
        # In kB: proc_meminfo(5).
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
        free = int(lines["MemAvailable"].split()[0]) * KIB
        total = int(lines.get("MemTotal", lines["MemAvailable"]).split()[0]) * KIB
    except (OSError, ValueError, LookupError):
        return
    yield Memory(total, free, MACHINE)


def _groups(cgroups: Path, own: Path) -> Iterator[Memory]:
    for folder in folders("memory", cgroups, own):
        for limit_name, used_name, reclaimable in VERSIONS:
            try:
                limit = int((folder / limit_name).read_text())
                used = int((folder / used_name).read_text())
            except (OSError, ValueError):  # "max" is not a number
                continue
            used -= sum(_counters(folder / "memory.stat").get(name, 0) for name in reclaimable)
            if limit < NO_LIMIT_BYTES:
                yield Memory(limit, max(0, limit - used), str(folder / limit_name))


def killed_for_memory(cgroups: Path = CGROUPS, own: Path = OWN) -> int:
    """The number of processes in this process's control groups that the kernel killed because memory ran out."""
    # Version 2 counts them in memory.events, version 1 in memory.oom_control.
    files = (
        folder / name for folder in folders("memory", cgroups, own) for name in ("memory.events", "memory.oom_control")
    )
    return max((_counters(path).get("oom_kill", 0) for path in files), default=0)


def _counters(path: Path) -> dict[str, int]:
    """Read a file with a name and a number in each line; {} if it cannot be read."""
    try:
        return {name: int(number) for name, number in map(str.split, path.read_text().splitlines())}
    except (OSError, ValueError):
        return {}
