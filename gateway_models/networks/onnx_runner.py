"""Runs models with ONNX Runtime, if it is installed."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway_models.networks.errors import ModelError, first_line, library

if TYPE_CHECKING:
    from torch import Tensor


def import_onnx() -> tuple[Any, Any]:
    """The modules onnx and onnxruntime; raises ModelError."""
    library("onnx.compose", "ONNX models", "local")
    return library("onnx", "ONNX models", "local"), library("onnxruntime", "ONNX models", "local")


def runner(model: Any, output: str = "") -> "Callable[[Tensor], Tensor]":  # noqa: ANN401
    """Wrap a model, or the file of one, as a function of tensors that ONNX Runtime computes on the CPU.

    A model with a fixed batch of 1 gets one image at a time. `output` is a name, or "" for the only output.
    Raises ModelError.
    """
    run = session_of(model, [output] if output else None)
    from gateway_models.networks.adapted import flat

    return lambda images: flat(run(images)[0])


def session_of(model: Any, wanted: Sequence[str] | None) -> "Callable[[Tensor], list[Tensor]]":  # noqa: ANN401
    """Wrap a model, or the file of one, as a function of tensors that returns the outputs `wanted`; see `runner`."""
    _, onnxruntime = import_onnx()
    import torch

    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    except Exception as exc:  # ONNX Runtime has no common base class
        raise ModelError(f"ONNX Runtime cannot run it: {first_line(exc)}") from exc
    given = session.get_inputs()[0]
    dtypes = {"tensor(float16)": torch.float16, "tensor(uint8)": torch.uint8}
    dtype = dtypes.get(given.type, torch.float32)
    at_once = 1 if given.shape and given.shape[0] == 1 else None

    def run(images: "Tensor") -> "list[Tensor]":
        batches = torch.split(images.to(dtype), at_once or len(images))
        answers = [session.run(wanted, {given.name: batch.contiguous().numpy()}) for batch in batches]
        return [torch.cat([torch.from_numpy(part) for part in parts]) for parts in zip(*answers, strict=True)]

    return run
