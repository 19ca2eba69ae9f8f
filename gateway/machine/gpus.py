"""The GPUs of this machine, and whether models can use them, without a library that takes seconds to import."""

import ctypes
import importlib.util
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from gateway.machine.child_environment import NETWORKS, child_environment

OLDEST_DRIVERS = {11: 450, 12: 525, 13: 580}
"""The oldest branch of NVIDIA's driver for each CUDA major version (CUDA compatibility guide, minor versions)."""
DRIVER = "libcuda.so.1"
"""The library of NVIDIA's driver; the container toolkit puts the host's into a container that is given a GPU."""
FAULTS = {
    35: "the driver is older than this CUDA needs; update the driver",
    46: "the GPU is in use by another process in exclusive mode, or not available; nvidia-smi shows its processes",
    100: "the driver sees no GPU: give one to the container, and look at CUDA_VISIBLE_DEVICES",
    101: "CUDA_VISIBLE_DEVICES, or the container, names a GPU that does not exist",
    304: "the driver's device files cannot be opened: look at the permissions of /dev/nvidia*",
    802: "the GPUs are not initialised yet: nvidia-fabricmanager must run on machines with NVSwitch",
    803: "the driver's library and its kernel module have different versions: restart the machine after an update of "
    "the driver, and the container",
    804: "the driver is too old for the CUDA of this image, and its compatibility libraries do not support this GPU; "
    "update the driver",
    999: "the driver failed for an unknown reason; `dmesg` of the machine may have it (NVRM, Xid)",
}
"""Advice by CUDA's error numbers (cuda.h, CUresult)."""
TORCH_CHECK_SECONDS = 120.0
_TORCH_CHECK = "import torch; print(torch.cuda.is_available())"


@dataclass(frozen=True, slots=True)
class Gpus:
    """GPUs as the CUDA driver and torch report them; CUDA versions are (major, minor), None if unknown.

    `driver_cuda` is the newest CUDA that the driver supports, `torch_cuda` the version that torch was built for.
    """

    count: int
    driver_cuda: tuple[int, int] | None = None
    torch_cuda: tuple[int, int] | None = None
    torch_sees_them: bool = True
    fault: str = ""
    """Why a driver that is installed reports no GPU."""

    @property
    def usable(self) -> int:
        """The number of GPUs that models can run on."""
        return self.count if self.torch_sees_them else 0

    @property
    def why_not(self) -> str:
        """Why torch cannot use the GPUs, and what to do; "" if it can, or if there are no GPUs."""
        if self.usable or not self.count:
            return ""
        if self.torch_cuda is None:
            return "the installed torch was built without CUDA; install one with CUDA"
        built = f"torch is built for CUDA {_dotted(self.torch_cuda)}"
        if self.driver_cuda is not None and self.driver_cuda[0] < self.torch_cuda[0]:
            oldest = OLDEST_DRIVERS.get(self.torch_cuda[0])
            newer = f"driver R{oldest} or newer" if oldest else "a newer driver"
            return (
                f"{built}, which needs {newer}, and the driver here runs CUDA {_dotted(self.driver_cuda)} at most; "
                f"update the driver, or install a torch for CUDA {self.driver_cuda[0]}"
            )
        return f"{built} and cannot use them; `{sys.executable} -c 'import torch; torch.cuda.init()'` says why"


def find_gpus() -> Gpus:
    """The GPUs of this machine; takes seconds if there are any, because a child process imports torch."""
    count = gpu_count()
    if not count:
        return Gpus(0, fault=gpu_fault() if _driver() is not None else "")
    return Gpus(count, _driver_cuda(), _torch_cuda(), _torch_sees_them())


def gpu_count() -> int:
    """The number of GPUs that the CUDA driver reports; 0 without a driver."""
    return _counted_gpus()[0]


def gpu_fault() -> str:
    """Why the CUDA driver reports no GPU, with CUDA's error number, and what to do; "" if it reports one."""
    count, error = _counted_gpus()
    if count:
        return ""
    if error is None:
        return f"there is no NVIDIA driver here ({DRIVER} cannot be loaded)"
    # A driver can report success and no device, where a variable hides all of them.
    number = error or 100
    version = _driver_cuda()
    supported = f"; the driver runs CUDA {_dotted(version)} at most" if version else ""
    return f"CUDA error {number}: {FAULTS.get(number, 'cuda.h explains it, under CUresult')}{supported}"


def _counted_gpus() -> tuple[int, int | None]:
    """The number of GPUs, and CUDA's error number; None without a driver."""
    cuda = _driver()
    if cuda is None:
        return 0, None
    count = ctypes.c_int(0)
    error = cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count))
    return (0 if error else count.value), error


def _driver() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(DRIVER)
    except OSError:
        return None


def _driver_cuda() -> tuple[int, int] | None:
    cuda = _driver()
    version = ctypes.c_int(0)
    if cuda is None or cuda.cuDriverGetVersion(ctypes.byref(version)) or not version.value:
        return None
    return version.value // 1000, version.value % 1000 // 10  # cuda.h: 1000 × major + 10 × minor


def _torch_cuda() -> tuple[int, int] | None:
    """Read from the text of torch/version.py, without importing torch."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return None
    try:
        text = (Path(found.origin).parent / "version.py").read_text()
    except OSError:
        return None
    return read_torch_cuda(text)


def read_torch_cuda(version_py: str) -> tuple[int, int] | None:
    """The CUDA version in the text of torch/version.py; None if torch was built without CUDA."""
    match = re.search(r"^cuda\b[^=\n]*=\s*['\"](\d+)\.(\d+)", version_py, re.MULTILINE)
    return (int(match[1]), int(match[2])) if match else None


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


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
