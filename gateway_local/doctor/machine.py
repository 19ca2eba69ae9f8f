"""Checks of the settings, and of the machine: its Python, Triton, GPU and memory."""

import importlib.util
import platform as system
import shutil
import sys
from pathlib import Path

from gateway.environment import SettingsError, load_settings
from gateway.findings import Finding, fail, ok, warn
from gateway.limits.buffers import needed
from gateway.machine.gpus import Gpus
from gateway.machine.memory import usable_memory
from gateway.plugin_loading import settings_class
from gateway.settings import MIB, Settings, variable
from gateway.triton.footprint import Need, size
from gateway.values.extras import install
from gateway_local.memory_plan import fit
from gateway_local.paths import PROJECT
from gateway_local.runtime.base import TritonRuntimeError, find_libpython
from gateway_local.runtime.wheel import (
    TRITON_VERSION,
    check_platform,
    is_fetched,
)
from gateway_local.server import SHARED_MEMORY, SHM_BYTES

SHM_RECOMMENDED_BYTES = 256 * MIB
"""Shared memory for regions that grow with large batches; Docker gives a container 64 MiB by default."""


def settings() -> tuple[Settings, Finding]:
    """The settings and a finding about them; the defaults if the settings are invalid."""
    try:
        loaded = load_settings()
    except SettingsError as exc:
        return settings_class().model_construct(), fail("settings", str(exc), "correct the variables or .env")
    given = sorted(map(variable, loaded.model_fields_set))
    return loaded, ok("settings", f"valid: {', '.join(given)}" if given else "valid, all defaults")


def platform() -> Finding:
    """Whether Triton and its models run on this system, C library and Python, with the packages that they import."""
    try:
        check_platform()
        libpython = find_libpython()
    except TritonRuntimeError as exc:
        return fail("platform", str(exc))
    if importlib.util.find_spec("torch") is None:
        return fail("platform", f"{sys.executable} has no torch, which the models need", install("local"))
    text = f"{system.system()} on {system.machine()}, {' '.join(system.libc_ver())}, {libpython}"
    try:
        importlib.import_module("exact_resize")
    except ImportError as exc:
        return warn(
            "platform",
            f"{text}; Pillow resizes, to the same pixels as exact_resize in six times its time: {exc}",
            f"{sys.executable} -m pip install {PROJECT / 'native'}, which needs a C compiler",
        )
    return ok("platform", text)


def triton(cache_dir: Path, faults: str, advice: str) -> Finding:
    """Whether the Triton that `gateway up` starts is in the cache; `faults` are its known faults."""
    where = f"is in {cache_dir}" if is_fetched(cache_dir) else "is not here yet; the first start fetches it (55 MB)"
    return warn("Triton", f"{TRITON_VERSION} {where}; it {faults}", advice)


def gpu(gpus: Gpus) -> Finding:
    """Whether there is a GPU, and if so whether models can use it."""
    if gpus.usable:
        return ok("GPU", f"{gpus.usable}, which models use")
    if gpus.count:
        return warn("GPU", f"{gpus.count}, and models run on the CPU: {gpus.why_not}")
    if gpus.fault:
        return warn("GPU", f"none, and models run on the CPU: {gpus.fault}")
    return ok("GPU", "none: models run on the CPU")


def memory(settings: Settings, models: Need | None) -> Finding:
    """Whether there is enough memory for the API and the models; `models` is None if Triton runs elsewhere."""
    free = usable_memory()
    if free is None:
        return warn("memory", "/proc/meminfo does not say how much is free")
    if models is not None:
        return fit(models, free, beside_bytes=needed(settings) + settings.triton_cache_bytes)
    wanted = needed(settings)
    text = f"{size(free.free_bytes)} are free, up to {size(wanted)} are needed under load"
    if free.free_bytes < wanted:
        return warn("memory", text, f"lower {variable('workers')} or {variable('max_request_bytes')}")
    return ok("memory", text)


def shared_memory(instances: int, folder: Path = SHARED_MEMORY) -> Finding:
    """Whether shared memory can hold the regions through which `instances` Python-backend processes get images."""
    try:
        usage = shutil.disk_usage(folder)
    except OSError as exc:
        return fail("shared memory", f"{folder}: {exc.strerror}", f"mount a tmpfs on {folder}")
    text = f"{size(usage.free)} of {size(usage.total)} are free in {folder}"
    advice = "give it 1 GiB: docker run --shm-size=1g, an emptyDir with medium: Memory, or mount -o remount,size=1G"
    if usage.free < instances * SHM_BYTES:
        wanted = size(instances * SHM_BYTES)
        return fail("shared memory", f"{text}, and {instances} model instances take {wanted} to start", advice)
    if usage.free < SHM_RECOMMENDED_BYTES:
        return warn("shared memory", f"{text}, which large batches may fill", advice)
    return ok("shared memory", text)
