"""Limits of the process that loads a file somebody sent: what it may take of the machine before the kernel says no."""

import resource
from pathlib import Path

GIB = 2**30
SPARE_BYTES = 8 * GIB
"""Address space beyond what the libraries have mapped, for any network."""
PER_SOURCE_BYTE = 12
"""The same for each byte of the source: weights as loaded, as traced, as frozen and as read again, with activations."""
WRITTEN_PER_SOURCE_BYTE = 4
SPARE_WRITTEN_BYTES = GIB
BLOCK_BYTES = 512
"""Of stat(2), whatever the file system uses."""
PAGE_BYTES = resource.getpagesize()
STATM = Path("/proc/self/statm")


def confine(source_bytes: int, *, cpu_seconds: float, address_space: bool = True) -> None:
    """Limit this process for good: address space, processor time, the size of a file it writes, and no core dumps.

    Call it after the large libraries have been imported: what they have mapped does not count. Beyond the limits an
    allocation fails, a write fails, or the process ends by SIGXCPU.
    """
    if address_space:
        mapped = int(STATM.read_text().split()[0]) * PAGE_BYTES
        _limit(resource.RLIMIT_AS, mapped + SPARE_BYTES + PER_SOURCE_BYTE * source_bytes)
    _limit(resource.RLIMIT_CPU, max(1, int(cpu_seconds)))
    _limit(resource.RLIMIT_FSIZE, SPARE_WRITTEN_BYTES + WRITTEN_PER_SOURCE_BYTE * source_bytes)
    _limit(resource.RLIMIT_CORE, 0)


def stored_bytes(path: Path) -> int:
    """The bytes of a file that take space on its disk: one of holes alone would lift every limit with its size."""
    found = path.stat()
    # Some file systems do not count blocks.
    return min(found.st_size, found.st_blocks * BLOCK_BYTES or found.st_size)


def _limit(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))
