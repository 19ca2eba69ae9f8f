"""Settings of glibc's memory allocator (mallopt(3)) for a process that serves large bodies."""

import ctypes
import os

MIB = 2**20
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h."""
KEPT_BYTES = {TRIM_THRESHOLD: 64 * MIB, MMAP_THRESHOLD: 32 * MIB}
"""Memory at the end of the heap that is kept, and the smallest buffer that always gets fresh pages."""
VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")


def keep_freed_memory() -> bool:
    """Keep the memory of one upload for the next one; returns whether the allocator accepted it.

    By default glibc returns large buffers to the kernel when they are freed, and each upload of some megabytes then
    costs hundreds of page faults. Nothing changes if the operator has set one of VARIABLES, or on a system without
    mallopt.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or any(name in os.environ for name in VARIABLES):
        return False
    return all(mallopt(option, nbytes) == 1 for option, nbytes in KEPT_BYTES.items())
