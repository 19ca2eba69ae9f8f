"""NNPACK is off on processors that lack the instructions that it needs; the processor is simulated."""

import importlib.util
import platform
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

BACKEND = Path(__file__).parents[2] / "triton_backends" / "pytorch" / "on_torch.py"


@pytest.mark.parametrize(
    ("machine", "capability", "enabled"),
    [("x86_64", "DEFAULT", False), ("x86_64", "AVX2", True), ("aarch64", "DEFAULT", True)],
)
def test_nnpack_is_off_without_avx2(machine, capability, enabled, monkeypatch):
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", ModuleType("triton_python_backend_utils"))
    monkeypatch.syspath_prepend(BACKEND.parent)
    spec = importlib.util.spec_from_file_location("backend_under_test", BACKEND)
    backend = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(backend)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    flags: list[bool] = []
    monkeypatch.setattr(torch.backends.nnpack, "set_flags", lambda _enabled: flags.append(_enabled))
    backend.leave_out_nnpack()
    assert flags == ([] if enabled else [False])
