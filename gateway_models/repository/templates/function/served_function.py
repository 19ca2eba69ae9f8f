"""Calls a user's Python function with images in its input format; the same code runs in the probe and in Triton.

function.json has `module`, `callable`, `input` and `activation`; code/ has the module and its files.
"""

import inspect
import json
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from served_code import UserCodeError, described, imported, needed, parameters  # type: ignore[import-not-found]
from torch import Tensor

__all__ = ["ServedFunction", "UserCodeError", "described"]
FUNCTION, CODE = "function.json", "code"
INPUTS = ("uint8-nhwc", "uint8-nchw", "float32-nchw", "float32-nhwc")
"""Input formats: the type and the order of the dimensions."""
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda scores: torch.softmax(scores, dim=1),
    "sigmoid": torch.sigmoid,
    "exp": torch.exp,
    "none": lambda scores: scores,
}
"""The functions from scores to probabilities."""


class ServedFunction:
    """The function of a folder, imported and loaded; raises UserCodeError where that fails.

    `device` is "cpu" or, for example, "cuda:0"; a `load` that takes an argument receives it.
    """

    def __init__(self, folder: Path, device: str) -> None:
        config = json.loads((folder / FUNCTION).read_text())
        self.name = f"{config['callable']} of {config['module']}.py"
        self._activation = ACTIVATIONS[config["activation"]]
        module = imported(folder / CODE, config["module"])
        self.function, self._state = _callable(module, config["callable"], device, self.name)
        annotation = _first_annotation(self.function)
        self.input: str = config["input"] or _input_of(annotation)
        """One of INPUTS: from function.json, else from the annotation."""
        self._as_tensor = annotation is Tensor

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
