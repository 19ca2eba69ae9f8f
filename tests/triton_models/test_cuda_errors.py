"""A process that has lost its GPU ends; after any other error it continues. Torch's CUDA is simulated."""

import os

import pytest
import torch

from tests.doubles.python_backend import imported, python_backend
from tests.processes import PROJECT

CUDA = torch.device("cuda", 0)
LOST_GPU = 74
ZEROS = torch.zeros


class Ended(BaseException):
    """Raised in place of the end of the process."""


@pytest.fixture
def load(monkeypatch):
    """Imports a file as Triton's stub would, with an os._exit that can be seen."""

    def end(code: int) -> None:
        raise Ended(code)

    monkeypatch.setattr(os, "_exit", end)
    python_backend(monkeypatch)
    return lambda path: imported(monkeypatch, PROJECT / path)


def failing_with(monkeypatch, error: Exception | None) -> None:
    """Allocations on the GPU fail with an error, or go to the CPU."""

    def pretended(*size: int, device: object = None) -> torch.Tensor:
        if error is not None:
            raise error
        return ZEROS(*size)

    monkeypatch.setattr(torch, "zeros", pretended)


BOTH = pytest.mark.parametrize(
    "path", ["triton_models/preprocessor/1/on_torch.py", "triton_backends/pytorch/on_torch.py"]
)


@BOTH
def test_process_ends_when_its_gpu_is_lost(load, monkeypatch, path):
    module = load(path)
    failing_with(monkeypatch, RuntimeError("CUDA error: device-side assert triggered"))
    with pytest.raises(Ended) as ended:
        module.end_if_gpu_is_lost(CUDA)
    assert ended.value.args == (LOST_GPU,)


@BOTH
@pytest.mark.parametrize("error", [None, torch.OutOfMemoryError("CUDA out of memory")])
def test_process_survives_while_the_gpu_works_or_is_full(load, monkeypatch, path, error):
    module = load(path)
    failing_with(monkeypatch, error)
    module.end_if_gpu_is_lost(CUDA)


@BOTH
def test_no_error_ends_a_process_on_a_cpu(load, monkeypatch, path):
    module = load(path)
    failing_with(monkeypatch, RuntimeError("anything"))
    module.end_if_gpu_is_lost(torch.device("cpu"))


def test_torchscript_model_ends_its_process_after_a_sticky_error(load, monkeypatch):
    module = load("triton_backends/pytorch/on_torch.py")
    failing_with(monkeypatch, RuntimeError("CUDA error: an illegal memory access was encountered"))
    model = module.Instance.__new__(module.Instance)
    model.device = CUDA
    monkeypatch.setattr(model, "_run", lambda _: (_ for _ in ()).throw(RuntimeError("CUDA error: illegal memory")))
    with pytest.raises(Ended):
        model.execute([object()])
    failing_with(monkeypatch, None)
    (response,) = model.execute([object()])
    assert "CUDA error" in str(response.error)


@pytest.mark.parametrize(
    ("message", "ends"),
    [
        ("CUDA failure 700: an illegal memory access was encountered ; GPU=0", True),
        ("CUDA failure 710: device-side assert triggered ; GPU=0", True),
        ("CUDA failure 2: out of memory ; GPU=0", False),
        ("Non-zero status code returned while running Reshape node", False),
    ],
)
def test_onnx_model_ends_its_process_after_a_sticky_error(load, message, ends):
    module = load("triton_backends/onnxruntime/onnx_execution.py")
    if ends:
        with pytest.raises(Ended):
            module.end_if_gpu_is_lost(RuntimeError(message))
    else:
        module.end_if_gpu_is_lost(RuntimeError(message))
