"""The hint that another runtime may be faster, and what it follows from."""

import json
from pathlib import Path

import pytest

from gateway.triton.model_config import read_model_configs
from gateway_local.cpu_features import cpu_name, has_bf16, has_vnni
from gateway_local.cpu_network import NETWORK, CpuNetwork, CpuRuntime, write
from gateway_local.tuning import ORIGIN, TUNING, hint, machine, runtimes
from gateway_machine.capacity import NetworkRuntime
from gateway_plugins.demand.footprint import Files, footprint

PLATFORMS = {"torch": "pytorch_libtorch", "other": "pytorch_libtorch", "onnx": "onnxruntime_onnx"}


@pytest.fixture
def repository(tmp_path) -> Path:
    """Three models that `gateway model add` wrote, as far as the hint reads them."""
    for name, platform in PLATFORMS.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / ORIGIN).touch()
        step = f'ensemble_scheduling {{ step [ {{ model_name: "{name}_network" model_version: -1 }} ] }}'
        (tmp_path / name / "config.pbtxt").write_text(f'name: "{name}" {step}')
        (tmp_path / f"{name}_network").mkdir()
        config = f'name: "{name}_network" platform: "{platform}"'
        (tmp_path / f"{name}_network" / "config.pbtxt").write_text(config)
    return tmp_path


def shown(repository: Path, model: str, gpus: int = 0) -> str | None:
    return hint(repository, read_model_configs(repository), model, gpus=gpus)


def test_hint_names_the_network_and_the_command(repository):
    assert shown(repository, "torch") == (
        "torch_network runs by TorchScript on this CPU; `gateway model tune torch "
        f"--model-repository {repository}` may find a faster runtime"
    )
    assert shown(repository, "torch", gpus=1) is None
    # The default model comes first, or else the first that runs by TorchScript.
    assert shown(repository, "other").startswith("other_network ")
    assert shown(repository, "onnx").startswith("other_network ")
    # `tune` needs the record of `gateway model add`.
    for name in PLATFORMS:
        (repository / name / ORIGIN).unlink()
    assert shown(repository, "torch") is None


@pytest.mark.parametrize(
    ("document", "tuned"),
    [
        (lambda: {"machine": machine(), "measured": []}, True),
        (lambda: {"machine": {**machine(), "cpu": "another"}, "measured": []}, False),
        (lambda: [{"variant": {}}], False),  # as earlier releases wrote it, without the machine
        (lambda: "{", False),
    ],
    ids=["here", "elsewhere", "earlier", "damaged"],
)
def test_no_hint_for_models_tuned_on_this_machine(repository, document, tuned):
    for name in ("torch", "other"):
        text = document()
        (repository / name / TUNING).write_text(text if isinstance(text, str) else json.dumps(text))
    assert (shown(repository, "torch") is None) is tuned


def test_processor_features_are_detected(tmp_path):
    path = tmp_path / "cpuinfo"
    for text, vnni, bf16, name in (
        ("model name : A CPU\nflags : avx2 avx512_vnni avx512_bf16", True, True, "A CPU"),
        ("flags : avx2 amx_bf16", False, True, ""),
        ("Features : asimd", True, False, ""),
    ):
        path.write_text(text)
        assert (has_vnni(path), has_bf16(path), cpu_name(path)) == (vnni, bf16, name)
    assert (has_vnni(tmp_path / "absent"), has_bf16(tmp_path / "absent")) == (True, False)


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
    return runtimes(repository, read_model_configs(repository), model, gpus=gpus)


def test_runtime_is_shown_with_its_reason(repository, recorded):
    assert lines(repository) == ["torch_network version 1 runs by ONNX Runtime on this CPU: both agree"]
    assert lines(repository, "other") == []
    assert lines(repository, gpus=1) == []
    assert shown(repository, "torch").startswith("other_network ")


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
