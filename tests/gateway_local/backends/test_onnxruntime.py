"""Triton's backend for ONNX, in the library that config.pbtxt names; without a Triton."""

import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper

from gateway_local.paths import DEFAULT_BACKENDS
from gateway_models.networks import onnx_graph
from gateway_models.networks.probe import Ending
from tests.doubles.python_backend import Refused, imported, python_backend
from tests.gateway_models.networks.builders import Head, save_onnx

BACKEND = DEFAULT_BACKENDS / "onnxruntime"
CONFIG: dict[str, Any] = {"parameters": {}, "input": [{"name": "input__0"}], "output": [{"name": "output__0"}]}
FP32, BF16 = ([{"name": "openvino", "parameters": {"precision": precision}}] for precision in ("fp32", "bf16"))
RUNTIMES = [[], FP32, BF16]
SIZE_OF_STACK_T = 24
"""Bytes; sigaltstack(2) on 64-bit Linux."""


@pytest.fixture(autouse=True)
def signal_stack():
    """OpenVINO sets a stack for the handlers of signals, and unmaps it with its last network.

    Python's handlers run on it: the next signal would kill the process, as in a test of Ctrl-C or of the alarm.
    """
    libc, before = ctypes.CDLL(None), ctypes.create_string_buffer(SIZE_OF_STACK_T)
    assert libc.sigaltstack(None, before) == 0
    yield
    assert libc.sigaltstack(before, None) == 0


@pytest.fixture
def load(tmp_path, monkeypatch) -> Callable[..., Any]:
    """The backend's instance of `tmp_path`/model.onnx, with CPU accelerators; `log` has its messages."""
    log = python_backend(monkeypatch, tmp_path)
    module = imported(monkeypatch, BACKEND / "model.py")

    def instance(accelerators: list[dict[str, Any]], kind: str = "CPU") -> Any:
        optimization = {"execution_accelerators": {"cpu_execution_accelerator": accelerators}}
        config = json.dumps({**CONFIG, "optimization": optimization})
        model = module.TritonPythonModel()
        model.initialize({"model_config": config, "model_instance_kind": kind, "model_instance_name": "one"})
        model.log = log.info
        return model

    return instance


@pytest.fixture
def network(tmp_path) -> Head:
    """Head, also as the model.onnx of `gateway model add`."""
    head = Head().eval()
    model = onnx_graph.load_onnx(save_onnx(head, tmp_path / "head.onnx"))
    finished = onnx_graph.finish(model, Ending.LOGITS, multi_label=False, side=32, classes=5)
    onnx_graph.write(finished, tmp_path / "model.onnx")
    return head


@pytest.mark.parametrize(
    ("accelerators", "runs", "tolerance"),
    [([], "by ONNX Runtime, CPU", 1e-5), (FP32, "by OpenVINO 20", 1e-5), (BF16, "by OpenVINO 20", 2e-2)],
)
def test_batches_of_every_size_have_the_answers_of_the_network(load, network, accelerators, runs, tolerance):
    model = load(accelerators)
    (line,) = model.log
    assert runs in line
    for size in [*np.random.default_rng(0).permutation(np.arange(1, 65)), 64, 1]:
        images = torch.randn((int(size), 3, 32, 32))
        (answers,) = model.session.run(["output__0"], {"input__0": images.numpy()})
        with torch.no_grad():
            assert np.abs(answers - network(images).softmax(dim=1).numpy()).max() < tolerance


@pytest.mark.parametrize("accelerators", [[], FP32])
def test_lone_image_on_an_idle_machine_has_the_answers_of_the_network(
    load, network, tmp_path, monkeypatch, accelerators
):
    (tmp_path / "threads.json").write_text('{"threads": 2}')
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    looks = []
    monkeypatch.setattr("os.pread", lambda *_: looks.append(1) or b"0.00 0.00 0.00 1/100 42")
    model = load(accelerators)
    for size in (1, 4, 32):
        images = torch.randn((size, 3, 32, 32))
        (answers,) = model.session.run(["output__0"], {"input__0": images.numpy()})
        with torch.no_grad():
            assert np.abs(answers - network(images).softmax(dim=1).numpy()).max() < 1e-5
    assert len(looks) == 1


def test_lone_image_after_a_pause_returns_the_memory_of_batches(load, network, monkeypatch):
    model, shrunk, now = load([]), [], [time.monotonic()]
    run = onnxruntime.InferenceSession.run

    def recorded(session: Any, outputs: Any, feed: Any, options: Any = None) -> Any:
        shrunk.append(options is not None)
        return run(session, outputs, feed, options)

    monkeypatch.setattr("onnxruntime.InferenceSession.run", recorded)
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    for size, pause_seconds in ((1, 9), (8, 0), (1, 1), (8, 9), (1, 9), (1, 9)):
        now[0] += pause_seconds
        model.session.run(["output__0"], {"input__0": np.zeros((size, 3, 32, 32), np.float32)})
    assert shrunk == [False, False, False, False, True, False]


@pytest.mark.parametrize("accelerators", RUNTIMES)
def test_answers_outlive_the_next_call(load, network, accelerators):
    """The images of a failed batch run one by one, and are answered together."""
    model = load(accelerators)
    one, other = np.zeros((2, 3, 32, 32), np.float32), np.ones((2, 3, 32, 32), np.float32)
    (first,) = model.session.run(["output__0"], {"input__0": one})
    kept = first.copy()
    model.session.run(["output__0"], {"input__0": other})
    assert np.array_equal(first, kept)


def test_openvino_computes_in_fp32_unless_configured(load, network):
    """By default it chooses bf16 where the processor has it."""
    assert load([{"name": "openvino"}]).log[0].endswith(" in f32")


@pytest.mark.parametrize(
    ("accelerators", "reason"),
    [
        ([{"name": "tensorflow"}], "'tensorflow', and only 'openvino' is known"),
        ([{"name": "openvino", "parameters": {"precision": "fp8"}}], "precision 'fp8': use fp32 or bf16"),
    ],
)
def test_wrong_accelerator_is_refused(load, network, accelerators, reason):
    with pytest.raises(Refused, match=reason):
        load(accelerators)


def test_missing_library_is_named_with_its_command(load, network, monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(Refused, match=r"OpenVINO, which is not installed .*pip install openvino"):
        load(FP32)


@pytest.mark.parametrize("accelerators", RUNTIMES[:2])
@pytest.mark.parametrize("content", [b"", b"junk", b'<?xml version="1.0"?><net name="a" version="11"></net>'])
def test_file_that_is_no_onnx_is_refused(load, tmp_path, accelerators, content):
    (tmp_path / "model.onnx").write_bytes(content)
    with pytest.raises(Refused, match=r"not an ONNX model that|has input 'input__0', and"):
        load(accelerators)


def weights_in(location: str) -> onnx.ModelProto:
    """A model whose weights are eight floats of another file."""
    weights = TensorProto(name="weights", data_type=TensorProto.FLOAT, dims=[8], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", "0"), ("length", "32")):
        weights.external_data.add(key=key, value=value)
    shapes = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 8]) for name in ("input__0", "output__0")]
    add = helper.make_node("Add", ["input__0", "weights"], ["output__0"])
    graph = helper.make_graph([add], "g", shapes[:1], shapes[1:], [weights])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("accelerators", RUNTIMES[:2])
@pytest.mark.parametrize("where", ["absolute", "above", "link"])
def test_weights_outside_of_the_folder_are_not_read(load, tmp_path, accelerators, where):
    """`gateway model add` refuses such a file; this one was copied into the repository by hand."""
    secret = tmp_path.parent / f"{tmp_path.name}-secret"
    secret.write_bytes(np.arange(8, dtype=np.float32).tobytes())
    (tmp_path / "link").symlink_to(secret)
    location = {"absolute": str(secret), "above": f"../{secret.name}", "link": "link"}[where]
    onnx.save(weights_in(location), tmp_path / "model.onnx")
    with pytest.raises(Refused, match="not an ONNX model that"):
        load(accelerators)


def test_importing_openvino_sends_nothing(tmp_path):
    """Its package for telemetry sends an event with each import, and writes an identity into the home folder."""
    code = "import sys, types; sys.modules['triton_python_backend_utils'] = types.ModuleType('u'); import on_openvino; "
    code += "print(*(name for name in sys.modules if name.startswith('openvino_telemetry.')))"
    environment = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(BACKEND)}
    for name in ("CI", "TF_BUILD", "JENKINS_URL"):  # in which it would be silent by itself
        environment.pop(name, None)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
    assert list(tmp_path.iterdir()) == []
