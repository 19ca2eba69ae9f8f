"""The checks of the machine in `gateway doctor`."""

import importlib.util
import os
import platform
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from gateway.findings import Finding, Level, fail, ok
from gateway.settings import GIB, MIB
from gateway.triton.footprint import Footprint, Need, Runtime
from gateway_local.doctor import machine
from gateway_local.paths import default_cache_dir
from gateway_local.runtime import wheel
from gateway_local.runtime.base import LibpythonMissing
from gateway_local.runtime.image.use import use
from tests.settings import Settings
from tests.triton_images import unpacked_image

SETTINGS = Settings(_env_file=None)
MODELS = Need((Footprint("classifier", Runtime.TORCH_CPU, 4, 300 * MIB, 450 * MIB),), 1200 * MIB, 1800 * MIB)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the only one in PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def program(path: Path, name: str, script: str) -> None:
    (path / name).write_text(f"#!/bin/sh\n{script}\n")
    (path / name).chmod(0o755)


def test_this_machine_runs_triton():
    finding = machine.system()
    assert finding.level is Level.OK
    assert platform.python_version() in finding.text


@pytest.mark.parametrize(
    ("function", "value", "words"),
    [
        ("system", "Darwin", "Linux on x86-64"),
        ("machine", "aarch64", "this is Linux on aarch64"),
        ("libc_ver", ("glibc", "2.31"), "glibc 2.34 or newer"),
        ("libc_ver", ("", ""), "another C library"),
    ],
)
def test_other_platform_fails_with_container_advice(monkeypatch, function, value, words):
    monkeypatch.setattr(platform, function, lambda: value)
    finding = machine.system()
    assert finding.level is Level.FAIL
    assert words in finding.text
    assert "docker compose up" in finding.text


def test_unsupported_python_fails(monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 9, 0, "final", 0))
    finding = machine.system()
    assert finding.level is Level.FAIL
    assert "3.11 to 3.13" in finding.text


def test_missing_resize_kernel_is_a_warning_with_build_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "exact_resize", None)
    finding = machine.resize_kernel()
    assert finding.level is Level.WARN
    assert "to the same pixels" in finding.text
    assert "native, which needs a C compiler" in finding.advice


def test_resize_kernel_is_shown_with_its_instructions(monkeypatch):
    monkeypatch.setitem(sys.modules, "exact_resize", SimpleNamespace(instructions=lambda: "avx2"))
    assert machine.resize_kernel() == Finding("resize", Level.OK, "exact_resize, avx2")


def test_libpython_is_found():
    assert machine.libpython().level is Level.OK


def test_python_without_libpython_fails_with_advice(monkeypatch):
    def nowhere() -> Path:
        raise LibpythonMissing("install it")

    monkeypatch.setattr(machine, "find_libpython", nowhere)
    assert machine.libpython() == fail("libpython", "install it")


@pytest.mark.usefixtures("runtime")
def test_cached_triton_needs_no_package_index(monkeypatch):
    monkeypatch.setattr(machine, "_run", lambda *command: pytest.fail(f"{command} was run"))
    assert machine.runtime(default_cache_dir()).level is Level.OK


def test_image_in_use_needs_no_package_index(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "_run", lambda *command: pytest.fail(f"{command} was run"))
    use(tmp_path, unpacked_image(tmp_path))
    finding = machine.runtime(tmp_path)
    assert finding.level is Level.OK
    assert "Triton 2.75.0 from registry.example/tritonserver:26.11-py3 is in" in finding.text


def test_image_for_another_python_is_a_warning(tmp_path):
    use(tmp_path, unpacked_image(tmp_path, python="3.99"))
    finding = machine.runtime(tmp_path)
    assert finding.level is Level.WARN
    assert "embeds Python 3.99" in finding.text
    assert "from the wheel" in finding.text


def test_image_in_use_runs_where_the_wheel_does_not(tmp_path, monkeypatch):
    """The wheel has programs for x86-64 and some versions of Python alone."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(wheel, "PYTHON_VERSIONS", ((3, 7), (3, 8)))
    assert machine.system().level is Level.FAIL
    cache = default_cache_dir()
    cache.mkdir()
    use(cache, unpacked_image(cache))
    assert machine.system().level is Level.OK


def test_triton_in_a_package_index_can_be_fetched(tmp_path, monkeypatch):
    (tmp_path / "nvidia_pytriton-0.7.0-py3-none-manylinux_2_35_x86_64.whl").touch()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    finding = machine.runtime(tmp_path / "cache")
    assert finding.level is Level.OK
    assert "the first start fetches it" in finding.text


def test_triton_missing_from_package_index_fails(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    finding = machine.runtime(tmp_path)
    assert finding.level is Level.FAIL
    assert "PIP_FIND_LINKS" in finding.advice


def test_other_version_of_the_wheel_fails(tmp_path, monkeypatch):
    (tmp_path / "nvidia_pytriton-0.6.0-py3-none-manylinux_2_35_x86_64.whl").touch()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    finding = machine.runtime(tmp_path / "cache")
    assert (finding.level, finding.text) == (Level.FAIL, "the package index has no nvidia-pytriton 0.7.0")


@pytest.mark.parametrize(("module", "check"), [("pip", "runtime"), ("torch", "torch")])
def test_missing_module_fails_with_install_command(tmp_path, monkeypatch, module, check):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == module else find_spec(name))
    finding = {"runtime": lambda: machine.runtime(tmp_path), "torch": machine.torch}[check]()
    assert finding.level is Level.FAIL
    assert finding.advice.startswith(("pip install", sys.executable))


@pytest.mark.parametrize(
    ("total", "free", "level"),
    [(64 * MIB, 64 * MIB, Level.WARN), (64 * MIB, 60 * MIB, Level.FAIL), (GIB, GIB, Level.OK)],
)
def test_shared_memory_must_hold_a_region_per_instance(monkeypatch, total, free, level):
    usage = type("usage", (), {"total": total, "free": free})
    monkeypatch.setattr("shutil.disk_usage", lambda folder: usage)
    finding = machine.shared_memory(instances=4)
    assert finding.level is level
    assert (level is Level.OK) == (not finding.advice)
    assert level is Level.OK or "--shm-size=1g" in finding.advice


def test_missing_shared_memory_fails(tmp_path):
    assert machine.shared_memory(1, tmp_path / "shm").level is Level.FAIL


@pytest.fixture
def container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files with a container's limits."""
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    monkeypatch.setattr(machine, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    (tmp_path / "meminfo").write_text("MemTotal:       16384000 kB\nMemAvailable:    8388608 kB\n")
    return tmp_path


@pytest.mark.usefixtures("container")
def test_enough_memory_passes():
    finding = machine.memory(SETTINGS, MODELS)
    assert finding.level is Level.OK
    assert finding.text.startswith("8.0 GiB are free; the models take 1.2 GiB once they are loaded")
    assert "classifier" in finding.text


def test_lower_container_memory_limit_applies(container):
    (container / "memory.max").write_text(f"{512 * MIB}\n")
    (container / "memory.current").write_text(f"{256 * MIB}\n")
    finding = machine.memory(SETTINGS, MODELS)
    assert finding.level is Level.FAIL
    assert finding.text.startswith(
        f"256 MiB of the 512 MiB of {container}/memory.max are free; the models take 1.2 GiB"
    )
    assert "fewer processes" in finding.advice
    finding = machine.memory(SETTINGS, None)
    assert finding.level is Level.WARN
    assert "GATEWAY_WORKERS" in finding.advice


def test_container_without_a_limit_has_the_machines_memory(container):
    (container / "memory.max").write_text("max\n")
    (container / "memory.current").write_text("1000\n")
    assert machine.memory(SETTINGS, MODELS).text.startswith("8.0 GiB are free")


def test_unknown_memory_is_a_warning(container):
    (container / "meminfo").unlink()
    assert machine.memory(SETTINGS, MODELS).level is Level.WARN


def test_remote_triton_needs_no_memory_here(container):
    (container / "meminfo").write_text(f"MemAvailable: {900 * 1024} kB\n")
    assert machine.memory(SETTINGS, MODELS).level is Level.FAIL
    assert machine.memory(SETTINGS, None).level is Level.OK


@pytest.mark.parametrize(
    ("quota", "workers", "level", "text"),
    [
        (None, 1, Level.OK, "4 cores"),
        ("max 100000", 4, Level.OK, "4 cores"),
        ("100000 100000", 1, Level.OK, "1 core"),
        ("150000 100000", 2, Level.WARN, "1.5 cores for 2 API processes"),
        (None, 8, Level.WARN, "4 cores for 8 API processes"),
    ],
)
def test_more_api_processes_than_cores_is_a_warning(container, quota, workers, level, text):
    if quota:
        (container / "cpu.max").write_text(f"{quota}\n")
    finding = machine.cores(Settings(_env_file=None, workers=workers))
    assert (finding.level, finding.text) == (level, text)


@pytest.mark.usefixtures("path")
def test_machine_without_a_gpu_passes():
    assert machine.gpu() == ok("GPU", "none: models run on the CPU")


def test_broken_gpu_driver_is_a_warning(path):
    program(path, "nvidia-smi", "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18")
    finding = machine.gpu()
    assert finding.level is Level.WARN
    assert "version mismatch" in finding.text


@pytest.mark.parametrize(
    ("script", "level", "words"),
    [
        ("echo 2.9.0+cu130 True 13.0", Level.OK, "torch 2.9.0+cu130 uses it"),
        ("echo 2.9.0+cpu False None", Level.WARN, "torch 2.9.0+cpu cannot use it"),
        ("exit 1", Level.WARN, "torch cannot be imported"),
    ],
)
def test_gpu_that_torch_cannot_use_is_a_warning(path, monkeypatch, script, level, words):
    program(path, "nvidia-smi", "echo 'NVIDIA H200, 143771 MiB, 580.82.07'")
    program(path, "python", script)
    monkeypatch.setattr(sys, "executable", str(path / "python"))
    finding = machine.gpu()
    assert finding.level is level
    assert "NVIDIA H200" in finding.text
    assert words in finding.text


def test_old_driver_is_named_with_the_required_version(path, monkeypatch):
    program(path, "nvidia-smi", "echo 'NVIDIA A10, 23028 MiB, 535.230.02'")
    program(path, "python", "echo 2.15.0+cu130 False 13.0")
    monkeypatch.setattr(sys, "executable", str(path / "python"))
    finding = machine.gpu()
    assert finding.level is Level.WARN
    assert "built for CUDA 13.0, which needs driver R580 or newer" in finding.text
    assert "from 535.230.02" in finding.advice
