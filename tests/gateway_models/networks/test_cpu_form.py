"""The form of a TorchScript network for ONNX Runtime: written if the answers agree, and the reason if they do not."""

import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

from gateway.triton.configs import parameters, read_model_config
from gateway_local import cpu_network
from gateway_local.cpu_network import CpuRuntime
from gateway_models.networks import cpu_form
from gateway_models.networks.add import add
from gateway_models.networks.cpu_form import convert
from gateway_models.networks.errors import ModelError
from gateway_models.networks.onnx_runner import session_of
from gateway_models.networks.torchscript import load_torchscript
from gateway_models.repository.entry import Entry, read_entry
from gateway_models.repository.spec import ImageTensor, Precision, Serving
from tests.gateway_models.networks.builders import Head, save_torchscript, spec_of
from tests.gateway_models.networks.special_networks import Calling
from tests.gateway_models.repository.entries import SMALL


def without_onnx() -> nn.Module:
    """A network with an operator that ONNX does not have."""
    return Calling(lambda scores, _: torch.special.i0e(scores) + scores)


def even() -> nn.Module:
    """Two classes that are nearly as likely."""
    return Calling(lambda _, images: torch.tensor([[0.5001, 0.4999]]).repeat(len(images), 1) + images.mean() * 0)


def added(folder: Path, network: "nn.Module | None" = None, **changes) -> tuple[Entry, Path, list[str]]:
    """An entry of one model, its model.pt, and the reported lines."""
    said: list[str] = []
    source = save_torchscript(network or Head(), folder / "head.pt")
    entry = add(spec_of(source, folder, **changes), folder / "models", said.append)
    return entry, entry.model_file(folder / "models", 1), said


def test_added_model_has_both_forms_and_a_record(added_head):
    repository, entry = added_head
    model = entry.model_file(repository, 1)
    record = json.loads(model.with_name("cpu.json").read_text())
    assert record["runtime"] == "onnxruntime"
    assert record["photographs"] == 18
    assert 0 <= record["difference"] < 1e-5
    assert cpu_network.choice(model) == (CpuRuntime.ONNXRUNTIME, record["reason"])
    assert entry.versions[1].outcome.cpu_runtime is CpuRuntime.ONNXRUNTIME
    assert read_entry(repository, "head") == entry
    ensemble = read_model_config(repository / "head" / "config.pbtxt")
    assert parameters(ensemble)["cpu_runtime"] == "onnxruntime"
    assert read_model_config(repository / "head_classifier" / "config.pbtxt").platform == "pytorch_libtorch"


@pytest.mark.parametrize(
    "changes",
    [{}, {"tensor": ImageTensor.UINT8}, {"multi_label": True}],
    ids=["plain", "uint8", "multi-label"],
)
def test_forms_agree(tmp_path, changes):
    entry, model, said = added(tmp_path, **changes)
    assert any("on a CPU it runs by ONNX Runtime" in line for line in said)
    assert entry.versions[1].outcome.cpu_runtime is CpuRuntime.ONNXRUNTIME
    session = onnxruntime.InferenceSession(model.with_name("cpu.onnx"), providers=["CPUExecutionProvider"])
    network = load_torchscript(model)
    for size in (1, 2, 9):
        images = torch.randint(0, 256, (size, 3, 32, 32), dtype=torch.uint8)
        given = images if entry.tensor is ImageTensor.UINT8 else images.float() / 128 - 1
        answer = session.run(None, {session.get_inputs()[0].name: given.numpy()})
        with torch.inference_mode():
            wanted = network(given)
        for one, other in zip(answer, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
            assert np.allclose(one, other.numpy(), atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"precision": Precision.BF16}, "it computes in bf16"),
        ({"serving": Serving(cpu_runtime="torchscript")}, "--cpu-runtime"),
        ({"serving": Serving(gpus=(0,))}, "GPUs alone"),
        ({"network": without_onnx()}, "torch cannot write it as ONNX"),
    ],
)
def test_torchscript_stays_for_a_reason(tmp_path, changes, reason):
    entry, model, said = added(tmp_path, **changes)
    assert any(reason in line for line in said)
    assert not model.with_name("cpu.onnx").exists()
    runtime, why = cpu_network.choice(model)
    assert runtime is CpuRuntime.TORCHSCRIPT
    assert reason in why
    assert "network" not in changes or "i0e" in why
    ensemble = read_model_config(tmp_path / "models" / "head" / "config.pbtxt")
    assert parameters(ensemble)["cpu_runtime"] == "torchscript"
    assert entry.versions[1].outcome.cpu_runtime is CpuRuntime.TORCHSCRIPT


def test_required_onnxruntime_is_an_error_where_it_is_not_possible(tmp_path):
    with pytest.raises(ModelError, match="--cpu-runtime onnxruntime is not possible: torch cannot write it"):
        added(tmp_path, without_onnx(), serving=Serving(cpu_runtime="onnxruntime"))
    assert list((tmp_path / "models").iterdir()) == []


@pytest.mark.parametrize(
    ("network", "change", "reason"),
    [
        (nn.Sequential(Head(), nn.Softmax(dim=1)), lambda answers: answers + 2e-3, "would differ by up to 0.002"),
        (nn.Sequential(Head(), nn.Softmax(dim=1)), lambda answers: answers * float("nan"), "would differ by up to nan"),
        (even(), lambda answers: answers.flip(1), "another top-1 class"),
    ],
    ids=["another probability", "no number", "another class within the tolerance"],
)
def test_other_answers_leave_torchscript(tmp_path, monkeypatch, network, change, reason):
    model = save_torchscript(network, tmp_path / "model.pt")
    assert convert(model, SMALL, ImageTensor.FP32).runtime is CpuRuntime.ONNXRUNTIME
    model.with_name("cpu.onnx").unlink()

    def changed(path, wanted):
        run = session_of(path, wanted)
        return lambda images: [change(answer) for answer in run(images)]

    monkeypatch.setattr(cpu_form, "session_of", changed)
    found = convert(model, SMALL, ImageTensor.FP32)
    assert found.runtime is CpuRuntime.TORCHSCRIPT
    assert reason in found.reason
    cpu_network.write(found, model)
    assert not model.with_name("cpu.onnx").exists()
