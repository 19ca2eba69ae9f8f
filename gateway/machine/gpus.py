"""The GPUs of this machine, and whether models can use them, without a library that takes seconds to import."""

import ctypes
import subprocess
import sys
from dataclasses import dataclass, replace

from gateway.machine.child_environment import NETWORKS, child_environment

DRIVER = "libcuda.so.1"
"""The library of NVIDIA's driver; the container toolkit puts the host's into a container that is given a GPU."""
NO_DEVICE = 100
"""CUDA's error number for no device (cuda.h, CUresult)."""
TORCH_CHECK_SECONDS = 120.0
_TORCH_CHECK = "import torch; print(torch.cuda.is_available())"


@dataclass(frozen=True, slots=True)
class Gpus:
    """The GPUs that the CUDA driver reports."""

    count: int
    torch_sees_them: bool = True
    fault: str = ""
    """Why a driver that is installed reports no GPU."""

    @property
    def usable(self) -> int:
        """The number of GPUs that models can run on."""
        return self.count if self.torch_sees_them else 0

    @property
    def why_not(self) -> str:
        """What says why torch cannot use the GPUs; "" if it can, or if there are no GPUs."""
        if self.usable or not self.count:
            return ""
        return f"torch cannot use them; `{sys.executable} -c 'import torch; torch.cuda.init()'` says why"


def find_gpus() -> Gpus:
    """The GPUs of this machine; takes seconds if there are any, because a child process imports torch."""
    found = reported_gpus()
    return replace(found, torch_sees_them=_torch_sees_them()) if found.count else found


def gpu_count() -> int:
    """The number of GPUs that the CUDA driver reports; 0 without a driver."""
    return reported_gpus().count


def reported_gpus() -> Gpus:
    """The GPUs that the CUDA driver reports, and whose use by torch was not checked; without a driver none."""
    try:
        cuda = ctypes.CDLL(DRIVER)
    except OSError:
        return Gpus(0)
    count = ctypes.c_int(0)
    error = cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count))
    if count.value and not error:
        return Gpus(count.value)
    # A driver can report success and no device, where a variable hides all of them.
    number, text = error or NO_DEVICE, ctypes.c_char_p()
    cuda.cuGetErrorString(number, ctypes.byref(text))
    return Gpus(0, fault=f"CUDA error {number}: {(text.value or b'unknown').decode()} (docs/guides/gpu.md)")


def _torch_sees_them() -> bool:
    # In a child process: torch would keep a GPU context and some hundred MB of memory in this one.
    try:
        check = subprocess.run(
            [sys.executable, "-c", _TORCH_CHECK],
            env=child_environment(*NETWORKS),
            capture_output=True,
            text=True,
            timeout=TORCH_CHECK_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return check.stdout.strip() == "True"
