"""How many GPUs there are, without a library that takes seconds to import."""

import ctypes


def gpu_count() -> int:
    """GPUs that the CUDA driver sees; 0 where there is no driver."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)):
        return 0
    return count.value
