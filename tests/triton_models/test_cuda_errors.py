"""A process that has lost its GPU ends, and after any other error it continues. Torch's CUDA is simulated."""

import os
from contextlib import nullcontext

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
    "path", ["triton_models/preprocessor/1/on_torch.py", "gateway_local/backends/pytorch/on_torch.py"]
)


@BOTH
@pytest.mark.parametrize(
    ("device", "error", "ends"),
    [
        (CUDA, RuntimeError("CUDA error: device-side assert triggered"), True),
        (CUDA, None, False),
        (CUDA, torch.OutOfMemoryError("CUDA out of memory"), False),
        (torch.device("cpu"), RuntimeError("anything"), False),
    ],
    ids=["lost", "works", "full", "CPU"],
)
def test_process_ends_when_its_gpu_is_lost(load, monkeypatch, path, device, error, ends):
    module = load(path)
    failing_with(monkeypatch, error)
    with pytest.raises(Ended, match=str(LOST_GPU)) if ends else nullcontext():
        module.end_if_gpu_is_lost(device)


def test_torchscript_model_ends_its_process_after_a_sticky_error(load, monkeypatch):
    module = load("gateway_local/backends/pytorch/on_torch.py")
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
    module = load("gateway_local/backends/onnxruntime/onnx_execution.py")
    with pytest.raises(Ended) if ends else nullcontext():
        module.end_if_gpu_is_lost(RuntimeError(message))
