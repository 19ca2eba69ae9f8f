"""The control groups of this process (cgroups(7), version 1 and 2), through which containers limit resources."""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

CGROUPS = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")


def folders(controller: str, cgroups: Path = CGROUPS, own: Path = OWN) -> Iterator[Path]:
    """The folders that may have a controller's files: this process's control group and all its ancestors."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        lines = []
    for line in ["0::/", *lines]:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = cgroups / controller if controllers else cgroups
        for folder in (PurePosixPath(path), *PurePosixPath(path).parents):
            yield root / str(folder).lstrip("/")
