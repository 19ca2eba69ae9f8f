"""The runtimes of a repository's networks on this CPU, as `gateway up` prints them."""

from pathlib import Path

import pytest

from gateway.machine.capacity import NetworkRuntime
from gateway.triton.configs import read_model_configs
from gateway.triton.footprint import Files, footprint
from gateway_local.cpu_features import cpu_name, has_bf16
from gateway_local.cpu_network import NETWORK, CpuNetwork, CpuRuntime, write
from gateway_local.tuning import runtimes

PLATFORMS = {"torch": "pytorch_libtorch", "other": "pytorch_libtorch", "onnx": "onnxruntime_onnx"}


@pytest.fixture
def repository(tmp_path) -> Path:
    """Three models, as far as `runtimes` reads them."""
    for name, platform in PLATFORMS.items():
        (tmp_path / name).mkdir()
        step = f'ensemble_scheduling {{ step [ {{ model_name: "{name}_network" model_version: -1 }} ] }}'
        (tmp_path / name / "config.pbtxt").write_text(f'name: "{name}" {step}')
        (tmp_path / f"{name}_network").mkdir()
        config = f'name: "{name}_network" platform: "{platform}"'
        (tmp_path / f"{name}_network" / "config.pbtxt").write_text(config)
    return tmp_path


def test_processor_features_are_detected(tmp_path):
    path = tmp_path / "cpuinfo"
    for text, bf16, name in (
        ("model name : A CPU\nflags : avx2 avx512_vnni avx512_bf16", True, "A CPU"),
        ("flags : avx2 amx_bf16", True, ""),
        ("Features : asimd", False, ""),
    ):
        path.write_text(text)
        assert (has_bf16(path), cpu_name(path)) == (bf16, name)
    assert not has_bf16(tmp_path / "absent")


@pytest.fixture
def recorded(repository) -> Path:
    """The version's folder of `torch`, whose network ONNX Runtime runs."""
    folder = repository / "torch_network" / "1"
    folder.mkdir()
    for name in ("model.pt", NETWORK):
        (folder / name).write_bytes(name.encode())
    write(CpuNetwork(CpuRuntime.ONNXRUNTIME, "both agree"), folder / "model.pt")
    return folder


def lines(repository: Path, model: str = "torch", gpus: int = 0) -> list[str]:
    return runtimes(repository, model, gpus=gpus)


def test_runtime_is_shown_with_its_reason(repository, recorded):
    assert lines(repository) == ["torch_network version 1 runs by ONNX Runtime on this CPU: both agree"]
    assert lines(repository, "other") == []
    assert lines(repository, gpus=1) == []


def test_swapped_network_is_a_warning_whatever_the_model(repository, recorded):
    (recorded / "model.pt").write_bytes(b"another")
    for model in ("torch", "other"):
        (line,) = lines(repository, model)
        assert line.startswith("warning: torch_network version 1 runs by TorchScript on this CPU: cpu.json belongs to")


def test_memory_is_estimated_for_the_runtime(repository, recorded):
    config = read_model_configs(repository)["torch_network"]
    folder = repository / "torch_network"
    assert footprint(folder.name, config, Files.of(folder, config)).runtime is NetworkRuntime.ONNX
    assert footprint(folder.name, config, Files.of(folder, config), gpus=1).runtime is not NetworkRuntime.ONNX
    (recorded / "cpu.json").write_text("[]")
    assert footprint(folder.name, config, Files.of(folder, config)).runtime is not NetworkRuntime.ONNX
