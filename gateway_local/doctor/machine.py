"""Checks of the machine: its system, Python, memory, cores and GPU."""

import importlib
import importlib.util
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from gateway.findings import Finding, fail, ok, warn
from gateway.limits.buffers import needed
from gateway.settings import MIB, Settings, variable
from gateway_local.memory_fit import Fit, advice, fit, sentence, table
from gateway_local.paths import PROJECT
from gateway_local.runtime.base import LibpythonMissing, find_libpython
from gateway_local.runtime.wheel import (
    TRITON_VERSION,
    WHEEL_PLATFORM,
    WHEEL_VERSION,
    UnsupportedPlatform,
    check_platform,
    is_fetched,
)
from gateway_local.server import SHARED_MEMORY, SHM_BYTES
from gateway_machine.cgroups import OWN
from gateway_machine.cores import usable_cores
from gateway_machine.gpus import driver_too_old
from gateway_machine.memory import usable_memory
from gateway_plugins.demand.footprint import Need, size
from gateway_plugins.shared.extras import install

SHM_RECOMMENDED_BYTES = 256 * MIB
"""Shared memory for regions that grow with large batches; Docker gives a container 64 MiB by default."""
INSTALL_LOCAL = install("local")
TIMEOUT_SECONDS = 60.0

CGROUP = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")


def system() -> Finding:
    """Whether Triton runs on this operating system, processor, C library and Python."""
    try:
        check_platform()
    except UnsupportedPlatform as exc:
        return fail("platform", str(exc))
    libc = " ".join(platform.libc_ver())
    return ok(
        "platform",
        f"{platform.system()} on {platform.machine()}, {libc}, {platform.python_implementation()} "
        f"{platform.python_version()}",
    )


def libpython() -> Finding:
    """Whether Triton's Python backend finds the library of this Python."""
    try:
        return ok("libpython", str(find_libpython()))
    except LibpythonMissing as exc:
        return fail("libpython", str(exc))


def runtime(cache_dir: Path) -> Finding:
    """Whether Triton is in the cache, or else whether pip can fetch it."""
    if is_fetched(cache_dir):
        return ok("runtime", f"Triton {TRITON_VERSION} is in {cache_dir}")
    if importlib.util.find_spec("pip") is None:
        return fail(
            "runtime",
            f"Triton is not in {cache_dir} and there is no pip to fetch it with",
            f"{sys.executable} -m ensurepip",
        )
    # Lists the versions that could be installed, and installs nothing.
    completed = _run(
        sys.executable, "-m", "pip", "index", "versions", "nvidia-pytriton", "--disable-pip-version-check",
        "--only-binary=:all:", f"--platform={WHEEL_PLATFORM}",
    )  # fmt: skip
    if completed is None or completed.returncode:
        reason = _last_line(completed.stderr) if completed else "pip does not answer"
        return fail(
            "runtime",
            f"Triton is not in {cache_dir} and pip cannot fetch it: {reason}",
            "make a package index reachable (PIP_INDEX_URL, PIP_FIND_LINKS), or run gateway triton fetch where there "
            f"is one and copy {cache_dir}",
        )
    if WHEEL_VERSION not in completed.stdout:
        return fail(
            "runtime", f"the package index has no nvidia-pytriton {WHEEL_VERSION}", "choose another one: PIP_INDEX_URL"
        )
    return ok("runtime", f"Triton {TRITON_VERSION} is not in {cache_dir} yet; the first start fetches it (55 MB)")


def torch() -> Finding:
    """Whether the models' processes can import torch."""
    if importlib.util.find_spec("torch") is None:
        return fail("torch", f"{sys.executable} has no torch, which the models need", INSTALL_LOCAL)
    return ok("torch", "installed")


def resize_kernel() -> Finding:
    """Whether the models' processes can import exact_resize, which makes Pillow's pixels in a sixth of the time."""
    try:
        kernel = importlib.import_module("exact_resize")
    except ImportError as exc:
        return warn(
            "resize",
            f"Pillow resizes, to the same pixels as exact_resize in six times its time: {exc}",
            f"{sys.executable} -m pip install {PROJECT / 'native'}, which needs a C compiler",
        )
    return ok("resize", f"exact_resize, {kernel.instructions()}")


def shared_memory(instances: int, folder: Path = SHARED_MEMORY) -> Finding:
    """Whether shared memory can hold the regions through which `instances` Python-backend processes get images."""
    try:
        usage = shutil.disk_usage(folder)
    except OSError as exc:
        return fail("shared memory", f"{folder}: {exc.strerror}", f"mount a tmpfs on {folder}")
    text = f"{size(usage.free)} of {size(usage.total)} are free in {folder}"
    advice = "give it 1 GiB: docker run --shm-size=1g, an emptyDir with medium: Memory, or mount -o remount,size=1G"
    needed = instances * SHM_BYTES
    if usage.free < needed:
        return fail("shared memory", f"{text}, and {instances} model instances take {size(needed)} to start", advice)
    if usage.free < SHM_RECOMMENDED_BYTES:
        return warn("shared memory", f"{text}, which large batches may fill", advice)
    return ok("shared memory", text)


def memory(settings: Settings, models: Need | None) -> Finding:
    """Whether there is enough memory for the API and the models; `models` is None if Triton runs elsewhere."""
    free = usable_memory(CGROUP, OWN, MEMINFO)
    if free is None:
        return warn("memory", f"{MEMINFO} does not say how much is free")
    if models is None:
        wanted = needed(settings)
        text = f"{size(free.free_bytes)} are free, up to {size(wanted)} are needed under load"
        if free.free_bytes < wanted:
            names = [variable(name) for name in ("workers", "max_bytes_waiting", "max_bytes_in_flight")]
            return warn("memory", text, f"lower {names[0]}, {names[1]} or {names[2]}")
        return ok("memory", text)
    beside = needed(settings) + settings.triton_cache_bytes
    text = "\n".join([sentence(models, free, beside_bytes=beside), *table(models)])
    match fit(models, free, beside_bytes=beside):
        case Fit.SHORT:
            return fail("memory", text, "; ".join(line.strip() for line in advice(models)))
        case Fit.NEAR:
            return warn("memory", text, "; ".join(line.strip() for line in advice(models)))
    return ok("memory", text)


def cores(settings: Settings) -> Finding:
    """Whether there is a core for each API process."""
    count = usable_cores(CGROUP)
    text = f"{count:g} {'core' if count == 1 else 'cores'}"
    if settings.workers > count:
        name = variable("workers")
        return warn("cores", f"{text} for {settings.workers} API processes", f"lower {name} to {max(1, int(count))}")
    return ok("cores", text)


def gpu() -> Finding:
    """Whether there is a GPU, and if so whether torch can use it."""
    completed = _run("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
    if completed is None:
        return ok("GPU", "none: models run on the CPU")
    if completed.returncode:
        reason = _last_line(completed.stdout + completed.stderr)
        return warn("GPU", f"nvidia-smi fails: {reason}", "repair the driver, or give the container GPUs (--gpus all)")
    text = "; ".join(completed.stdout.strip().splitlines())
    # In a process of its own: a GPU context and some hundred MB would stay in this one.
    code = "import torch; print(torch.__version__, torch.cuda.is_available(), torch.version.cuda)"
    imported = _run(sys.executable, "-c", code)
    if imported is None or imported.returncode:
        return warn("GPU", f"{text}, but torch cannot be imported", INSTALL_LOCAL)
    version, available, built_for = [*imported.stdout.split(), "None"][:3]
    driver = text.splitlines()[0].rpartition(",")[2].strip()
    if available != "True" and (needed := driver_too_old(driver, built_for)):
        return warn(
            "GPU",
            f"{text}, but torch {version} is built for CUDA {built_for}, which needs driver R{needed} or newer: models "
            "run on the CPU, and gateway up hides the GPU from Triton",
            f"update the driver from {driver}, or install a torch for an older CUDA",
        )
    if available != "True":
        return warn(
            "GPU", f"{text}, but torch {version} cannot use it: models run on the CPU", "install a torch with CUDA"
        )
    return ok("GPU", f"{text}; torch {version} uses it")


def _run(*command: str) -> "subprocess.CompletedProcess[str] | None":
    """A completed program with its output; None if it does not exist or does not end within TIMEOUT_SECONDS."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "it prints nothing"
