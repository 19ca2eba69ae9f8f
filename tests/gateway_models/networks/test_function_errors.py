"""What one request makes a function raise costs no other request of its batch anything; Triton is pretended."""

import importlib.util
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from gateway_models.networks.functions import FunctionConfig, find_function
from tests.gateway_models.networks.functions import own_modules, save_function

PICKY = """
import numpy as np

calls = []

def classify(images):
    calls.append(len(images))
    if (images == 13).any():
        raise ValueError("thirteen")
    if (images == 14).any():
        raise SystemExit("fourteen")
    return images.reshape(len(images), -1)[:, :2].astype(np.float32)
"""


@pytest.fixture
def triton_model(tmp_path, monkeypatch):
    """A function's model.py, initialized as Triton would, with its log as `log`."""
    log: list[str] = []
    utils: Any = ModuleType("triton_python_backend_utils")
    utils.Logger = SimpleNamespace(log_error=log.append, log_info=lambda _: None)
    utils.TritonError = str
    utils.InferenceResponse = lambda outputs=(), error=None: SimpleNamespace(outputs=outputs, error=error)
    utils.Tensor = SimpleNamespace(from_dlpack=lambda _, tensor: tensor)
    utils.get_input_tensor_by_name = lambda request, _: SimpleNamespace(to_dlpack=lambda: request.__dlpack__())
    utils.TritonModelException = RuntimeError
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", utils)
    find_function(f"{save_function(tmp_path, PICKY)}:classify").stage(
        tmp_path / "1", FunctionConfig("colours", "classify")
    )
    with own_modules():
        spec = importlib.util.spec_from_file_location("function_model_under_test", tmp_path / "1" / "model.py")
        module = importlib.util.module_from_spec(spec)
        threads = torch.get_num_threads()
        spec.loader.exec_module(module)
        model = module.TritonPythonModel()
        model.initialize({"model_instance_kind": "CPU", "model_instance_name": "mine", "model_instance_device_id": "0"})
        model.log = log
        yield model
        torch.set_num_threads(threads)


def of(value: int) -> torch.Tensor:
    """A request of one image that is all one value."""
    return torch.full((1, 3, 4, 4), float(value))


def test_only_the_request_that_fails_gets_an_error(triton_model):
    answers = triton_model.execute([of(1), of(13), of(2), of(14), of(3)])
    errors = [answer.error for answer in answers]
    assert errors == [
        None,
        "classify of colours.py failed with ValueError; Triton's log has the traceback",
        None,
        "classify of colours.py failed with SystemExit; Triton's log has the traceback",
        None,
    ]
    assert [answers[number].outputs[0].tolist() for number in (0, 2, 4)] == [[[1, 1]], [[2, 2]], [[3, 3]]]
    # Once together, then each alone.
    assert sys.modules["colours"].calls == [5, 1, 1, 1, 1, 1]


def test_traceback_is_logged_once_per_batch(triton_model):
    answers = triton_model.execute([of(13), of(13), of(1)])
    assert [answer.error is None for answer in answers] == [False, False, True]
    (trace,) = triton_model.log
    assert trace.startswith("classify of colours.py failed: Traceback")
    assert trace.count("ValueError: thirteen") == 1
    # Another batch is another occasion.
    triton_model.execute([of(13)])
    assert len(triton_model.log) == 2
