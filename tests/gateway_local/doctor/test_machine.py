"""The checks of the machine, of settings and of ports in `gateway doctor`."""

import importlib.util
import os
import platform
import socket
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from gateway.findings import Finding, Level, fail
from gateway.settings import GIB, MIB
from gateway_local.doctor import configuration, machine
from gateway_local.paths import default_cache_dir
from gateway_local.runtime.base import LibpythonMissing
from gateway_machine.capacity import NetworkRuntime
from gateway_plugins.demand.footprint import Footprint, Need
from tests.doubles.http import Reply, http_server
from tests.processes import free_port
from tests.settings import Settings

SETTINGS = Settings(_env_file=None)
MODELS = Need((Footprint("classifier", NetworkRuntime.TORCH_CPU, 4, 300 * MIB, 450 * MIB),), 1200 * MIB, 1800 * MIB)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the only one in PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def program(path: Path, name: str, script: str) -> None:
    (path / name).write_text(f"#!/bin/sh\n{script}\n")
    (path / name).chmod(0o755)


@pytest.mark.parametrize("glibc", ["2.34", "2.35", "2.41"])
def test_machine_with_a_recent_c_library_runs_triton(monkeypatch, glibc):
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", glibc))
    finding = machine.system()
    assert finding.level is Level.OK
    assert platform.python_version() in finding.text


def test_libpython_is_found_or_comes_with_advice(monkeypatch):
    def nowhere() -> Path:
        raise LibpythonMissing("install it")

    assert machine.libpython().level is Level.OK
    monkeypatch.setattr(machine, "find_libpython", nowhere)
    assert machine.libpython() == fail("libpython", "install it")


@pytest.mark.parametrize(
    ("module", "name", "value", "words"),
    [
        (platform, "system", lambda: "Darwin", "Linux on x86-64"),
        (platform, "system", lambda: "Windows", "this is Windows on "),
        (platform, "machine", lambda: "aarch64", "this is Linux on aarch64"),
        (platform, "libc_ver", lambda: ("glibc", "2.33"), "this system has glibc 2.33"),
        (platform, "libc_ver", lambda: ("musl", "1.2.4"), "another C library"),
        (platform, "libc_ver", lambda: ("", ""), "another C library"),
        (sys, "version_info", (3, 9, 0, "final", 0), "3.11 to 3.13"),
    ],
)
def test_other_platform_fails_with_container_advice(monkeypatch, module, name, value, words):
    monkeypatch.setattr(module, name, value)
    finding = machine.system()
    assert finding.level is Level.FAIL
    assert words in finding.text
    assert module is sys or "docker compose up" in finding.text
    assert name != "libc_ver" or "needs glibc 2.34 or newer" in finding.text


def test_resize_kernel_is_shown_or_missed(monkeypatch):
    monkeypatch.setitem(sys.modules, "exact_resize", SimpleNamespace(instructions=lambda: "avx2"))
    assert machine.resize_kernel() == Finding("resize", Level.OK, "exact_resize, avx2")
    monkeypatch.setitem(sys.modules, "exact_resize", None)
    finding = machine.resize_kernel()
    assert finding.level is Level.WARN
    assert "to the same pixels" in finding.text
    assert "native, which needs a C compiler" in finding.advice


@pytest.mark.usefixtures("runtime")
def test_cached_triton_needs_no_package_index(monkeypatch):
    monkeypatch.setattr(machine, "_run", lambda *command: pytest.fail(f"{command} was run"))
    assert machine.runtime(default_cache_dir()).level is Level.OK


@pytest.mark.parametrize(
    ("version", "level", "words"),
    [
        ("0.7.0", Level.OK, "the first start fetches it"),
        ("0.6.0", Level.FAIL, "the package index has no nvidia-pytriton 0.7.0"),
        (None, Level.FAIL, "PIP_FIND_LINKS"),
    ],
)
def test_triton_is_looked_for_in_the_package_index(tmp_path, monkeypatch, version, level, words):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    if version:
        (tmp_path / f"nvidia_pytriton-{version}-py3-none-manylinux_2_35_x86_64.whl").touch()
        monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    finding = machine.runtime(tmp_path / "cache")
    assert finding.level is level
    assert words in finding.text + finding.advice


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
def test_shared_memory_must_hold_a_region_per_instance(monkeypatch, tmp_path, total, free, level):
    assert machine.shared_memory(1, tmp_path / "shm").level is Level.FAIL
    usage = type("usage", (), {"total": total, "free": free})
    monkeypatch.setattr("shutil.disk_usage", lambda folder: usage)
    finding = machine.shared_memory(instances=4)
    assert finding.level is level
    assert (level is Level.OK) == (not finding.advice)
    assert level is Level.OK or "--shm-size=1g" in finding.advice


@pytest.fixture
def container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files with a container's limits."""
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    monkeypatch.setattr(machine, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    (tmp_path / "meminfo").write_text("MemTotal:       16384000 kB\nMemAvailable:    8388608 kB\n")
    return tmp_path


H200, A10 = "echo 'NVIDIA H200, 143771 MiB, 580.82.07'", "echo 'NVIDIA A10, 23028 MiB, 535.230.02'"


GROUP = {"memory.max": f"{512 * MIB}\n", "memory.current": f"{256 * MIB}\n"}
AVAILABLE = {"meminfo": f"MemAvailable: {900 * 1024} kB\n"}


@pytest.mark.parametrize(
    ("files", "models", "level", "words"),
    [
        ({}, MODELS, Level.OK, "8.0 GiB are free; the models take 1.2 GiB once they are loaded"),
        ({}, MODELS, Level.OK, "classifier"),
        ({"memory.max": "max\n", "memory.current": "1000\n"}, MODELS, Level.OK, "8.0 GiB are free"),
        (GROUP, MODELS, Level.FAIL, "/memory.max are free; the models take 1.2 GiB"),
        (GROUP, MODELS, Level.FAIL, "fewer processes"),
        (GROUP, None, Level.WARN, "GATEWAY_WORKERS"),
        ({"meminfo": ""}, MODELS, Level.WARN, ""),
        (AVAILABLE, MODELS, Level.FAIL, ""),
        (AVAILABLE, None, Level.OK, ""),  # a remote Triton needs no memory here
    ],
)
def test_memory_of_the_container_must_hold_the_models(container, files, models, level, words):
    for name, text in files.items():
        (container / name).write_text(text)
    finding = machine.memory(SETTINGS, models)
    assert finding.level is level
    assert words in finding.text + finding.advice


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


@pytest.mark.parametrize(
    ("smi", "torch", "level", "words"),
    [
        ("", "", Level.OK, "none: models run on the CPU"),
        (
            "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18",
            "",
            Level.WARN,
            "version mismatch",
        ),
        (H200, "echo 2.9.0+cu130 True 13.0", Level.OK, "torch 2.9.0+cu130 uses it"),
        (H200, "echo 2.9.0+cpu False None", Level.WARN, "torch 2.9.0+cpu cannot use it"),
        (H200, "exit 1", Level.WARN, "torch cannot be imported"),
        (A10, "echo 2.15.0+cu130 False 13.0", Level.WARN, "built for CUDA 13.0, which needs driver R580 or newer"),
        (A10, "echo 2.15.0+cu130 False 13.0", Level.WARN, "from 535.230.02"),
    ],
)
def test_gpu_that_torch_cannot_use_is_a_warning(path, monkeypatch, smi, torch, level, words):
    if smi:
        program(path, "nvidia-smi", smi)
    if torch:
        program(path, "python", torch)
        monkeypatch.setattr(sys, "executable", str(path / "python"))
    finding = machine.gpu()
    assert finding.level is level
    assert "NVIDIA" in finding.text or not torch
    assert words in finding.text + finding.advice


@pytest.mark.parametrize(
    ("workers", "used", "level", "text"),
    [("2", 2, Level.OK, "valid: GATEWAY_WORKERS"), ("0", 1, Level.FAIL, "GATEWAY_WORKERS='0'")],
)
def test_settings_that_are_set_are_listed_and_defaults_replace_invalid_ones(
    monkeypatch, tmp_path, workers, used, level, text
):
    for name in [name for name in os.environ if name.upper().startswith("GATEWAY_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)  # away from .env
    monkeypatch.setenv("GATEWAY_WORKERS", workers)
    settings, finding = configuration.settings()
    assert (settings.workers, finding.level) == (used, level)
    assert finding.text.startswith(text)


def test_port_of_the_api_is_free_or_that_of_a_gateway():
    def checked(port: int, **settings: object) -> Finding:
        return configuration.api_port(Settings(_env_file=None, port=port, **settings))

    assert checked(free_port()).level is Level.OK
    with socket.create_server(("127.0.0.1", 0)) as listener:
        # `gateway doctor` must not wait for an answer for ever.
        threading.Thread(target=lambda: listener.accept()[0].close()).start()
        taken = checked(listener.getsockname()[1])
    elsewhere = checked(8080, host="192.0.2.1")
    for finding, words in ((taken, "is taken"), (taken, "GATEWAY_PORT"), (elsewhere, "cannot listen on 192.0.2.1")):
        assert finding.level is Level.FAIL
        assert words in finding.text
    with http_server(lambda asked: Reply(200, b'{"status":"live"}')) as port:
        finding = checked(port)
    assert finding.level is Level.WARN
    assert "in use by a gateway" in finding.text


def test_taken_triton_ports_are_a_warning(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken = listener.getsockname()[1]
        monkeypatch.setattr(configuration, "TRITON_PORTS", {"gRPC": taken, "HTTP": free_port()})
        finding = configuration.triton_ports()
    assert finding.level is Level.WARN
    assert finding.text == f"taken on 127.0.0.1: gRPC {taken}"
    assert "--grpc-port" in finding.advice
    monkeypatch.setattr(configuration, "TRITON_PORTS", {"gRPC": free_port()})
    assert configuration.triton_ports().level is Level.OK
