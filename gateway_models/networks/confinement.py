"""Kernel-enforced resource limits of the process that loads an untrusted file."""

import resource
from pathlib import Path

GIB = 2**30
SPARE_BYTES = 8 * GIB
"""Address space for any network, beyond what the libraries have mapped."""
PER_SOURCE_BYTE = 12
"""Further address space per byte of the source: weights as loaded, traced, frozen and read again, with activations."""
WRITTEN_PER_SOURCE_BYTE = 4
SPARE_WRITTEN_BYTES = GIB
BLOCK_BYTES = 512
"""The unit of st_blocks in stat(2), on every file system."""
PAGE_BYTES = resource.getpagesize()
STATM = Path("/proc/self/statm")


def confine(source_bytes: int, *, cpu_seconds: float, address_space: bool = True) -> None:
    """Limit this process permanently: address space, CPU time, the size of each file it writes, and no core dumps.

    Call it after the large libraries have been imported: what they have mapped does not count. Beyond the limits, an
    allocation fails, a write fails, or the process ends by SIGXCPU.
    """
    if address_space:
        mapped = int(STATM.read_text().split()[0]) * PAGE_BYTES
        _limit(resource.RLIMIT_AS, mapped + SPARE_BYTES + PER_SOURCE_BYTE * source_bytes)
    _limit(resource.RLIMIT_CPU, max(1, int(cpu_seconds)))
    _limit(resource.RLIMIT_FSIZE, SPARE_WRITTEN_BYTES + WRITTEN_PER_SOURCE_BYTE * source_bytes)
    _limit(resource.RLIMIT_CORE, 0)


def stored_bytes(path: Path) -> int:
    """The bytes of a file that occupy disk space: the size of a sparse file would raise every limit."""
    found = path.stat()
    # Some file systems do not count blocks.
    return min(found.st_size, found.st_blocks * BLOCK_BYTES or found.st_size)


def _limit(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))
