"""The checks of the machine, of settings and of ports in `gateway doctor`."""

import importlib.util
import os
import platform
import sys
from pathlib import Path

import pytest

from gateway.findings import Level, fail
from gateway.machine.capacity import NetworkRuntime
from gateway.machine.gpus import Gpus
from gateway.machine.memory import MACHINE, Memory
from gateway.settings import GIB, MIB
from gateway.triton.footprint import Footprint, Need
from gateway_local.doctor import machine
from gateway_local.paths import default_cache_dir
from gateway_local.runtime.base import LibpythonMissing
from tests.settings import Settings

SETTINGS = Settings(_env_file=None)
MODELS = Need((Footprint("classifier", NetworkRuntime.TORCH_CPU, 4, 300 * MIB, 450 * MIB),))


def test_libpython_is_found_or_comes_with_advice(monkeypatch):
    def nowhere() -> Path:
        raise LibpythonMissing("install it")

    monkeypatch.setattr(machine, "find_libpython", nowhere)
    assert machine.platform() == fail("platform", "install it")


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
    finding = machine.platform()
    assert finding.level is Level.FAIL
    assert words in finding.text
    assert module is sys or "docker compose up" in finding.text
    assert name != "libc_ver" or "needs glibc 2.34 or newer" in finding.text


def test_missing_resize_kernel_is_a_warning(monkeypatch):
    monkeypatch.setitem(sys.modules, "exact_resize", None)
    finding = machine.platform()
    assert finding.level is Level.WARN
    assert "to the same pixels" in finding.text
    assert "native, which needs a C compiler" in finding.advice


@pytest.mark.usefixtures("runtime")
def test_triton_of_the_machine_has_faults(tmp_path):
    found = machine.triton(default_cache_dir(), "it is old", "take another")
    assert (found.level, found.advice) == (Level.WARN, "take another")
    assert found.text.endswith("it is old")
    assert "the first start fetches it" in machine.triton(tmp_path / "cache", "", "").text


def test_missing_torch_fails_with_install_command(monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else find_spec(name))
    finding = machine.platform()
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


@pytest.mark.parametrize(
    ("nbytes", "models", "level", "words"),
    [
        (8 * GIB, MODELS, Level.OK, "8.0 GiB are free; the models take 1.2 GiB once they are loaded"),
        (8 * GIB, MODELS, Level.OK, "classifier"),
        (256 * MIB, MODELS, Level.FAIL, "fewer processes"),
        (256 * MIB, None, Level.WARN, "GATEWAY_WORKERS"),
        (None, MODELS, Level.WARN, ""),
        (900 * MIB, None, Level.OK, ""),  # a remote Triton needs no memory here
    ],
)
def test_memory_must_hold_the_models(monkeypatch, nbytes, models, level, words):
    monkeypatch.setattr(machine, "usable_memory", lambda: nbytes and Memory(nbytes, nbytes, MACHINE))
    finding = machine.memory(SETTINGS, models)
    assert finding.level is level
    assert words in finding.text + finding.advice


@pytest.mark.parametrize(
    ("gpus", "level", "words"),
    [
        (Gpus(0), Level.OK, "none: models run on the CPU"),
        (Gpus(0, fault="CUDA error 803"), Level.WARN, "CUDA error 803"),
        (Gpus(2), Level.OK, "2, which models use"),
        (Gpus(1, torch_sees_them=False), Level.WARN, "torch.cuda.init()"),
    ],
)
def test_gpu_that_torch_cannot_use_is_a_warning(gpus, level, words):
    finding = machine.gpu(gpus)
    assert finding.level is level
    assert words in finding.text


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
    settings, finding = machine.settings()
    assert (settings.workers, finding.level) == (used, level)
    assert finding.text.startswith(text)
