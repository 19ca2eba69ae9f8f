"""The runtime of a TorchScript network on a CPU, by the files next to it; without a Triton."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateway_local import cpu_network
from gateway_local.cpu_network import CpuRuntime
from gateway_local.paths import DEFAULT_BACKENDS
from tests.doubles.python_backend import Input, imported, python_backend
from tests.gateway_models.networks.builders import Head, save_torchscript

BACKEND = DEFAULT_BACKENDS / "pytorch"
NETWORK, RECORD = cpu_network.NETWORK, cpu_network.RECORD
CONFIG = {
    "parameters": {"INFERENCE_MODE": {"string_value": "true"}},
    "default_model_filename": "model.pt",
    "input": [{"name": "input__0"}],
    "output": [{"name": "output__0"}],
}


@pytest.fixture
def version(added_head, tmp_path) -> Path:
    """The version's folder of a model that `gateway model add` wrote."""
    repository, entry = added_head
    return Path(shutil.copytree(entry.model_file(repository, 1).parent, tmp_path / "1"))


@pytest.fixture
def load(version, monkeypatch) -> Callable[..., Any]:
    """The backend's instance of the version; `log` and `warnings` have its messages."""
    log = python_backend(monkeypatch, version)
    module = imported(monkeypatch, BACKEND / "model.py")
    # torch accepts this once per process, in which other tests have used it.
    monkeypatch.setattr("torch.set_num_interop_threads", lambda _: None)

    def instance(kind: str = "CPU", **changes: Any) -> Any:
        model = module.TritonPythonModel()
        config = json.dumps({**CONFIG, **changes})
        model.initialize({"model_config": config, "model_instance_kind": kind, "model_instance_name": "one"})
        model.log, model.warnings = log.info, log.warnings
        return model

    return instance


def request(images: np.ndarray) -> dict[str, Input]:
    return {"input__0": Input("input__0", images)}


def assert_answers(model: Any, version: Path, *batches: np.ndarray, atol: float) -> None:
    """The backend answers each batch as the network in model.pt does."""
    import torch

    from gateway_models.networks.torchscript import load_torchscript

    network = load_torchscript(version / "model.pt")
    for batch, response in zip(batches, model.execute([request(batch) for batch in batches]), strict=True):
        with torch.inference_mode():
            assert torch.allclose(response.outputs[0][1], network(torch.from_numpy(batch)), atol=atol)


def noise(*sizes: int) -> list[np.ndarray]:
    return [np.random.default_rng(size).normal(size=(size, 3, 32, 32)).astype(np.float32) for size in sizes]


def test_onnxruntime_runs_an_added_network(load, version):
    model = load()
    assert "by ONNX Runtime" in model.log[-1]
    assert model.warnings == []
    assert_answers(model, version, *noise(1, 4, 7), atol=1e-5)


def test_elastic_network_answers_as_before(load, version):
    (version / "threads.json").write_text('{"threads": 2}')
    model = load()
    if len(os.sched_getaffinity(0)) > 1:
        assert "a lone image on 2 threads" in model.log[-1]
    for size in (1, 4, 32):
        assert_answers(model, version, *noise(size), atol=1e-5)


def test_request_that_fails_does_not_fail_the_others(load):
    good, bad = np.zeros((1, 3, 32, 32), np.float32), np.zeros((1, 2, 32, 32), np.float32)
    first, second = load().execute([request(good), request(bad)])
    assert first.error is None
    assert "input" in str(second.error)


@pytest.mark.parametrize(
    ("recorded", "reason"), [(False, f"its folder has no {RECORD}"), (True, "it computes in bf16")]
)
def test_torch_runs_a_network_without_a_record_or_by_it(load, version, recorded, reason):
    (version / RECORD).unlink()
    if recorded:
        cpu_network.write(cpu_network.CpuNetwork(CpuRuntime.TORCHSCRIPT, reason), version / "model.pt")
    model = load()
    assert "by torch" in model.log[-1]
    assert model.log[-1].endswith(reason)
    assert model.warnings == []


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


NO_CHECKSUM = '{"runtime": "onnxruntime", "reason": "it is faster"}'


@pytest.mark.parametrize(
    "change",
    [
        lambda version: save_torchscript(Head(seed=1), version / "model.pt"),
        lambda version: flip_a_bit(version / NETWORK),
        lambda version: (version / NETWORK).unlink(),
        lambda version: (version / RECORD).write_text((version / RECORD).read_text()[:-20]),
        lambda version: (version / RECORD).write_text("[]"),
        lambda version: (version / RECORD).write_text(NO_CHECKSUM),
    ],
    ids=["swapped", "damaged", "removed", "cut record", "list as a record", "no checksum"],
)
def test_files_that_do_not_fit_leave_torch_and_a_warning(load, version, change):
    change(version)
    model = load()
    assert "by torch" in model.log[-1]
    (warning,) = model.warnings
    assert "not ONNX Runtime" in warning
    assert cpu_network.choice(version / "model.pt")[0] is CpuRuntime.TORCHSCRIPT
    assert_answers(model, version, *noise(3), atol=1e-6)


def test_network_that_onnxruntime_does_not_load_runs_by_torch(load, version):
    """Such as one of a newer release: its checksum fits."""
    (version / NETWORK).write_bytes(b"no network")
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
    (response,) = model.execute([request(*noise(1))])
    assert "the model has 1 outputs, config.pbtxt has 2" in str(response.error)


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
