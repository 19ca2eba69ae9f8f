"""What runs a TorchScript network on a CPU, by the files beside it; without a Triton."""

import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from gateway_local import cpu_network
from gateway_local.cpu_network import CpuRuntime
from gateway_models.networks.torchscript import load_torchscript
from tests.gateway_models.networks.builders import Head, save_torchscript

BACKEND = Path(__file__).parents[2] / "triton_backends" / "pytorch"
CONFIG = {
    "parameters": {"INFERENCE_MODE": {"string_value": "true"}},
    "default_model_filename": "model.pt",
    "input": [{"name": "input__0"}],
    "output": [{"name": "output__0"}],
}


class Refused(Exception):
    """In place of TritonModelException."""


class Given:
    """An input tensor of Triton's, which gives its values by DLPack."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    def is_cpu(self) -> bool:
        return True

    def to_dlpack(self) -> Any:
        return self.values.__dlpack__()

    def __dlpack__(self, **_: Any) -> Any:
        return self.values.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.values.__dlpack_device__()


@pytest.fixture
def version(added_head, tmp_path) -> Path:
    """The version's folder of a model that `gateway model add` wrote."""
    repository, entry = added_head
    return Path(shutil.copytree(entry.model_file(repository, 1).parent, tmp_path / "1"))


@pytest.fixture
def load(version, monkeypatch) -> Callable[..., Any]:
    """The backend's instance of the version; `log` and `warnings` of it are what it logged."""
    log: list[str] = []
    warnings: list[str] = []
    utils: Any = ModuleType("triton_python_backend_utils")
    utils.Logger = SimpleNamespace(log_info=log.append, log_error=log.append, log_warn=warnings.append)
    utils.TritonModelException, utils.get_model_dir = Refused, lambda: str(version)
    utils.get_input_tensor_by_name = lambda request, name: request[name]
    utils.TritonError = lambda message: SimpleNamespace(message=message)
    utils.InferenceResponse = lambda outputs=(), error=None: SimpleNamespace(outputs=outputs, error=error)
    utils.Tensor = SimpleNamespace(from_dlpack=lambda name, tensor: (name, torch.utils.dlpack.from_dlpack(tensor)))
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", utils)
    monkeypatch.syspath_prepend(BACKEND)
    for name in ("cpu_network", "on_torch", "on_onnxruntime", "onnx_execution", "positions", "torch_archives"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    spec = importlib.util.spec_from_file_location("backend_of_pytorch", BACKEND / "model.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    # torch accepts this once per process, in which other tests have used it.
    monkeypatch.setattr(torch, "set_num_interop_threads", lambda _: None)

    def instance(kind: str = "CPU", **changes: Any) -> Any:
        model = module.TritonPythonModel()
        config = json.dumps({**CONFIG, **changes})
        model.initialize({"model_config": config, "model_instance_kind": kind, "model_instance_name": "one"})
        model.log, model.warnings = log, warnings
        return model

    return instance


def answers(model: Any, *batches: np.ndarray) -> list[torch.Tensor]:
    responses = model.execute([{"input__0": Given(batch)} for batch in batches])
    return [response.outputs[0][1] for response in responses]


def by_onnxruntime(model: Any) -> bool:
    return "by ONNX Runtime" in model.log[-1]


def test_onnxruntime_runs_an_added_network(load, version):
    model = load()
    assert by_onnxruntime(model)
    assert model.warnings == []
    network = load_torchscript(version / "model.pt")
    images = [np.random.default_rng(size).normal(size=(size, 3, 32, 32)).astype(np.float32) for size in (1, 4, 7)]
    for given, answer in zip(images, answers(model, *images), strict=True):
        with torch.inference_mode():
            assert torch.allclose(answer, network(torch.from_numpy(given)), atol=1e-5)


def test_request_that_fails_does_not_fail_the_others(load):
    good, bad = np.zeros((1, 3, 32, 32), np.float32), np.zeros((1, 2, 32, 32), np.float32)
    first, second = load().execute([{"input__0": Given(good)}, {"input__0": Given(bad)}])
    assert first.error is None
    assert "input" in second.error.message


def test_network_without_a_record_runs_by_torch(load, version):
    (version / cpu_network.RECORD).unlink()
    model = load()
    assert "by torch" in model.log[-1]
    assert f"there is no {cpu_network.RECORD} beside it" in model.log[-1]
    assert model.warnings == []


def _swap(version: Path) -> None:
    save_torchscript(Head(seed=1), version / "model.pt")


def _damage(version: Path) -> None:
    path = version / cpu_network.NETWORK
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _remove(version: Path) -> None:
    (version / cpu_network.NETWORK).unlink()


def _cut_record(version: Path) -> None:
    path = version / cpu_network.RECORD
    path.write_text(path.read_text()[:-20])


def _list_record(version: Path) -> None:
    (version / cpu_network.RECORD).write_text("[]")


def _no_checksum(version: Path) -> None:
    (version / cpu_network.RECORD).write_text('{"runtime": "onnxruntime", "reason": "it is faster"}')


@pytest.mark.parametrize("change", [_swap, _damage, _remove, _cut_record, _list_record, _no_checksum])
def test_files_that_do_not_fit_leave_torch_and_a_warning(load, version, change):
    change(version)
    model = load()
    assert "by torch" in model.log[-1]
    (warning,) = model.warnings
    assert "not ONNX Runtime" in warning
    runtime, _, damaged = cpu_network.choice(version / "model.pt")
    assert (runtime, damaged) == (CpuRuntime.TORCHSCRIPT, True)
    network = load_torchscript(version / "model.pt")
    images = np.random.default_rng(0).normal(size=(3, 3, 32, 32)).astype(np.float32)
    with torch.inference_mode():
        assert torch.allclose(answers(model, images)[0], network(torch.from_numpy(images)), atol=1e-6)


def test_network_that_onnxruntime_does_not_load_runs_by_torch(load, version):
    """Such as one of a newer release: its checksum fits."""
    (version / cpu_network.NETWORK).write_bytes(b"no network")
    found = cpu_network.CpuNetwork(CpuRuntime.ONNXRUNTIME, "it was right elsewhere")
    cpu_network.write(found, version / "model.pt")
    model = load()
    assert "by torch" in model.log[-1]
    assert "ONNX Runtime cannot run cpu.onnx" in model.warnings[0]


def test_missing_onnxruntime_leaves_torch_and_a_warning(load, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    model = load()
    assert "by torch" in model.log[-1]
    assert "pip install onnxruntime" in model.warnings[0]


def test_other_outputs_than_configured_are_an_error_and_no_answer(load):
    model = load(output=[{"name": "output__0"}, {"name": "output__1"}])
    assert "by torch" in model.log[-1]
    assert "it has 1 inputs and 1 outputs, config.pbtxt has 1 and 2" in model.warnings[0]
    (response,) = model.execute([{"input__0": Given(np.zeros((1, 3, 32, 32), np.float32))}])
    assert "the model has 1 outputs, config.pbtxt has 2" in response.error.message


def test_choice_of_torchscript_is_logged_with_its_reason(load, version):
    found = cpu_network.CpuNetwork(CpuRuntime.TORCHSCRIPT, "it computes in bf16")
    cpu_network.write(found, version / "model.pt")
    model = load()
    assert "by torch" in model.log[-1]
    assert model.log[-1].endswith("it computes in bf16")
    assert model.warnings == []


def test_record_up_to_its_limit_is_read(version):
    path = version / cpu_network.RECORD
    content = path.read_bytes()
    path.write_bytes(content + b" " * (2**16 - len(content)))
    assert cpu_network.choice(version / "model.pt")[0] is CpuRuntime.ONNXRUNTIME
    path.write_bytes(content + b" " * (2**16 - len(content) + 1))
    assert cpu_network.choice(version / "model.pt")[0] is CpuRuntime.TORCHSCRIPT


def test_process_of_onnxruntime_does_not_import_torch(version):
    program = """
import json, sys, types
utils = types.ModuleType("triton_python_backend_utils")
utils.Logger = types.SimpleNamespace(log_info=print, log_warn=print)
utils.get_model_dir = lambda: sys.argv[2]
sys.modules["triton_python_backend_utils"] = utils
sys.path.insert(0, sys.argv[1])
from model import TritonPythonModel
model = TritonPythonModel()
model.initialize({"model_config": sys.argv[3], "model_instance_kind": "CPU", "model_instance_name": "one"})
print("torch" in sys.modules)
"""
    command = [sys.executable, "-c", program, str(BACKEND), str(version), json.dumps(CONFIG)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = ended.stdout.splitlines()
    assert "by ONNX Runtime" in lines[0]
    assert lines[-1] == "False"
