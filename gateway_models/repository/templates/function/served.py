"""Calls a user's Python function with images in its input format; the same code runs in the probe and in Triton.

served.json has `module`, `callable`, `input` and `activation`; code/ has the module and its files.
"""

import inspect
import json
import os
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from served_code import UserCodeError, described, imported, needed, parameters  # type: ignore[import-not-found]
from torch import Tensor
from torch.utils.dlpack import from_dlpack

__all__ = ["Served", "UserCodeError", "described"]
CONFIG, CODE = "served.json", "code"
INPUT, OUTPUT = "input__0", "output__0"
LOST_GPU = 74
"""Exit code of a process that has lost its GPU (EX_IOERR of sysexits.h)."""
INPUTS = ("uint8-nhwc", "uint8-nchw", "float32-nchw", "float32-nhwc")
"""Input formats: the type and the order of the dimensions."""
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda scores: torch.softmax(scores, dim=1),
    "sigmoid": torch.sigmoid,
    "exp": torch.exp,
    "none": lambda scores: scores,
}
"""The functions from scores to probabilities."""


class Served:
    """The function of a folder, imported and loaded; raises UserCodeError where that fails.

    A `load` that takes an argument receives the device, "cpu" or, for example, "cuda:0"; `args` are Triton's.
    """

    def __init__(self, folder: Path, args: Mapping[str, str] = types.MappingProxyType({})) -> None:
        if args:
            # One core for each instance, so that instances do not compete for cores.
            torch.set_num_threads(1)
        on_gpu = args.get("model_instance_kind") == "GPU" and torch.cuda.is_available()
        self._device = f"cuda:{args['model_instance_device_id']}" if on_gpu else "cpu"
        config = json.loads((folder / CONFIG).read_text())
        self.name = f"{config['callable']} of {config['module']}.py"
        self._activation = ACTIVATIONS[config["activation"]]
        module = imported(folder / CODE, config["module"])
        self.function, self._state = _callable(module, config["callable"], self._device, self.name)
        annotation = _first_annotation(self.function)
        self.input: str = config["input"] or _input_of(annotation)
        """One of INPUTS: from served.json, else from the annotation."""
        self._as_tensor = annotation is Tensor

    def responses(self, requests: list[Any]) -> list[Any]:
        """Triton's responses: images fp32 [N, 3, H, W] → probabilities fp32 [N, classes]."""
        import triton_python_backend_utils as pb_utils

        # DLPack both ways: the backend's own conversion to numpy is built against numpy 1.
        given = [from_dlpack(pb_utils.get_input_tensor_by_name(request, INPUT).to_dlpack()) for request in requests]
        batch = torch.cat(given) if len(given) > 1 else given[0]
        parts = torch.split(self.probabilities(batch), [len(images) for images in given])
        return [pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack(OUTPUT, part.contiguous())]) for part in parts]

    def end_if_unusable(self) -> None:
        """End this process if its GPU is lost: it would fail every request and still be ready."""
        if self._device == "cpu":
            return
        try:
            torch.zeros(1, device=self._device).add_(1).item()
        except torch.OutOfMemoryError:
            return
        except RuntimeError as exc:
            sys.stderr.write(f"the GPU is lost to this process, which ends: {exc}\n")
            os._exit(LOST_GPU)  # without cleaning up, which needs the GPU

    def probabilities(self, images: Tensor) -> Tensor:
        """fp32 [N, classes] on the CPU; raises the function's exceptions."""
        return self._activation(self.scores(images)).contiguous()

    def scores(self, images: Tensor) -> Tensor:
        """The function's scores for images fp32 [N, 3, H, W], in fp32 on the CPU; raises its exceptions."""
        batch = arranged(images.cpu(), self.input)
        result = self.function(batch if self._as_tensor else batch.numpy(), *self._state)
        if isinstance(result, Mapping) and len(result) == 1:
            (result,) = result.values()
        elif isinstance(result, (list, tuple)) and len(result) == 1 and getattr(result[0], "ndim", 0) == 2:
            (result,) = result
        scores = _tensor(result).detach().cpu().float()
        if scores.dim() != 2 or len(scores) != len(images):
            raise UserCodeError(
                f"{self.name} gave {list(scores.shape)} for a batch of {len(images)}, and one row of scores for each "
                "image, [N, classes], is expected"
            )
        return scores


def arranged(images: Tensor, wanted: str) -> Tensor:
    """Convert images fp32 [N, 3, H, W] to one of INPUTS; for uint8 they must be pixels of 0 to 255."""
    dtype, _, order = wanted.partition("-")
    if dtype == "uint8":
        images = images.round().clamp(0, 255).to(torch.uint8)
    return (images.permute(0, 2, 3, 1) if order == "nhwc" else images).contiguous()


def _tensor(scores: object) -> Tensor:
    if isinstance(scores, Tensor):
        return scores
    array = np.asarray(scores)
    if array.dtype.kind not in "fiu":
        raise UserCodeError(f"scores are numbers, and these are {type(scores).__name__} of {array.dtype}")
    return torch.from_numpy(np.array(array, dtype=np.float32))


def _callable(module: types.ModuleType, name: str, device: str, label: str) -> tuple[Callable[..., Any], Sequence[Any]]:
    """The callable of a module, and its arguments behind the batch: what `load` returned, if it takes that."""
    function = getattr(module, name, None)
    if not callable(function):
        raise UserCodeError(f"{label}: there is no such function")
    if inspect.isclass(function) or inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise UserCodeError(f"{label} is a class, asynchronous or a generator: a function of the batch is expected")
    try:
        load = getattr(module, "load", None)
        takes = needed(load) if callable(load) else []
        state = None if not callable(load) or load is function else load(device) if takes else load()
    except (Exception, SystemExit) as exc:
        raise UserCodeError(f"{label} could not be loaded: {described(exc)}") from exc
    count = len(needed(function))
    if count > 2:
        raise UserCodeError(
            f"{name} needs {count} arguments, but it is given the batch of images, and as a second argument what "
            "load() returned"
        )
    return function, (state,) * (count == 2)


def _first_annotation(function: Callable[..., Any]) -> object:
    """The type of the first parameter, or None."""
    found = parameters(function)
    if not found:
        return None
    target = function if inspect.isroutine(function) else type(function).__call__
    try:
        return typing.get_type_hints(target).get(found[0].name)
    except Exception:  # ignore annotations that cannot be evaluated
        return None


def _input_of(annotation: object) -> str:
    """One of INPUTS for a type: NDArray[np.uint8], which is also the default, NDArray[np.float32], torch.Tensor."""
    if annotation is Tensor:
        return "float32-nchw"
    if typing.get_origin(annotation) is np.ndarray:
        for part in typing.get_args(annotation)[1:]:
            if np.float32 in typing.get_args(part):
                return "float32-nchw"
    return "uint8-nhwc"
