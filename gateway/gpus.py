"""The GPUs of this machine, and whether models can use them, without a library that takes seconds to import."""

import ctypes
import importlib.util
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

OLDEST_DRIVERS = {11: 450, 12: 525, 13: 580}
"""The oldest branch of NVIDIA's driver for all of a CUDA major version (CUDA compatibility guide, minor versions)."""
TRY_SECONDS = 120.0
_TRY = "import torch; print(torch.cuda.is_available())"


@dataclass(frozen=True, slots=True)
class Gpus:
    """What the CUDA driver and torch say; versions are (major, minor) of CUDA, None where they are not known.

    `driver_cuda` is the newest CUDA that the driver runs, `torch_cuda` the one that torch was built for.
    """

    count: int
    driver_cuda: tuple[int, int] | None = None
    torch_cuda: tuple[int, int] | None = None
    torch_sees_them: bool = True

    @property
    def usable(self) -> int:
        """GPUs that models can run on."""
        return self.count if self.torch_sees_them else 0

    @property
    def why_not(self) -> str:
        """Why torch does not use the GPUs, and what would change it; "" where it does, or where there are none."""
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
    """What is known of this machine's GPUs; takes seconds where there are some, since torch is asked."""
    count = gpu_count()
    if not count:
        return Gpus(0)
    return Gpus(count, _driver_cuda(), _torch_cuda(), _torch_sees_them())


def driver_too_old(driver: str, torch_cuda: str) -> int | None:
    """The driver branch that torch for a CUDA such as 13.0 needs, where a driver such as 535.230.02 is older."""
    oldest = OLDEST_DRIVERS.get(_first_number(torch_cuda))
    return oldest if oldest is not None and 0 < _first_number(driver) < oldest else None


def _first_number(version: str) -> int:
    match = re.match(r"\d+", version.strip())
    return int(match[0]) if match else 0


def gpu_count() -> int:
    """GPUs that the CUDA driver sees; 0 where there is no driver."""
    cuda = _driver()
    count = ctypes.c_int(0)
    if cuda is None or cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)):
        return 0
    return count.value


def _driver() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def _driver_cuda() -> tuple[int, int] | None:
    cuda = _driver()
    version = ctypes.c_int(0)
    if cuda is None or cuda.cuDriverGetVersion(ctypes.byref(version)) or not version.value:
        return None
    return version.value // 1000, version.value % 1000 // 10  # cuda.h: 1000 × major + 10 × minor


def _torch_cuda() -> tuple[int, int] | None:
    """Read from torch's files, which import nothing."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return None
    try:
        text = (Path(found.origin).parent / "version.py").read_text()
    except OSError:
        return None
    return read_torch_cuda(text)


def read_torch_cuda(version_py: str) -> tuple[int, int] | None:
    """The CUDA version in the text of torch/version.py; None where torch was built without."""
    match = re.search(r"^cuda\b[^=\n]*=\s*['\"](\d+)\.(\d+)", version_py, re.MULTILINE)
    return (int(match[1]), int(match[2])) if match else None


def _torch_sees_them() -> bool:
    # In a process of its own: a context on the GPU and some hundred MB would stay with this one.
    try:
        tried = subprocess.run(
            [sys.executable, "-c", _TRY], capture_output=True, text=True, timeout=TRY_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return tried.stdout.strip() == "True"


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
