"""NNPACK is off on processors that lack the instructions that it needs; the processor is simulated."""

import platform

import pytest

from gateway_local.paths import DEFAULT_BACKENDS
from tests.doubles.python_backend import imported, python_backend


@pytest.mark.parametrize(
    ("machine", "capability", "enabled"),
    [("x86_64", "DEFAULT", False), ("x86_64", "AVX2", True), ("aarch64", "DEFAULT", True)],
)
def test_nnpack_is_off_without_avx2(machine, capability, enabled, monkeypatch):
    python_backend(monkeypatch)
    backend = imported(monkeypatch, DEFAULT_BACKENDS / "pytorch" / "on_torch.py")
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: capability)
    flags: list[bool] = []
    monkeypatch.setattr("torch.backends.nnpack.set_flags", lambda _enabled: flags.append(_enabled))
    backend.leave_out_nnpack()
    assert flags == ([] if enabled else [False])
