"""Calls a user's Python function with images in its input format; the same code runs in the probe and in Triton.

function.json has `module`, `callable`, `input`, `output` and `activation`; code/ has the module and its files.
"""

import importlib.util
import inspect
import json
import sys
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

FUNCTION, CODE = "function.json", "code"
INPUTS = ("uint8-nhwc", "uint8-nchw", "float32-nchw", "float32-nhwc")
"""Input formats: the type and the order of the dimensions."""
BATCH, SAMPLE = "batch", "sample"
_STYLE = "_gateway_style"
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda scores: torch.softmax(scores, dim=1),
    "sigmoid": torch.sigmoid,
    "exp": torch.exp,
    "none": lambda scores: scores,
}
"""The functions from scores to probabilities."""


class FunctionError(Exception):
    """A function or its result cannot be served; the message names the reason and what to do."""


class ServedFunction:
    """The function of a folder, imported and loaded; raises FunctionError where that fails.

    `device` is "cpu" or, for example, "cuda:0"; a `load` or a class that takes an argument receives it.
    """

    def __init__(self, folder: Path, device: str) -> None:
        config = json.loads((folder / FUNCTION).read_text())
        self.name = f"{config['callable']} of {config['module']}.py"
        self._output: str = config["output"]
        self._activation = ACTIVATIONS[config["activation"]]
        module = _imported(folder / CODE, config["module"])
        self._call, given = _callable(module, config["callable"], device, self.name)
        self.input: str = config["input"] or given
        """One of INPUTS: from function.json, else from the annotation."""
        self._as_tensor = _first_annotation(self._call.function) is Tensor

    def probabilities(self, images: Tensor) -> Tensor:
        """fp32 [N, classes] on the CPU; raises whatever the function raises."""
        return self._activation(self.scores(images)).contiguous()

    def scores(self, images: Tensor) -> Tensor:
        """The function's scores for images fp32 [N, 3, H, W], in fp32 on the CPU; raises whatever it raises."""
        batch = arranged(images.cpu(), self.input)
        result = self._call(batch if self._as_tensor else batch.numpy(), len(images))
        scores = _tensor(chosen(result, self._output)).detach().cpu().float()
        if scores.dim() != 2 or len(scores) != len(images):
            raise FunctionError(
                f"{self.name} gave {list(scores.shape)} for a batch of {len(images)}, and one row of scores for each "
                "image, [N, classes], is expected"
            )
        return scores


class _Call:
    """A function and its other arguments: the result of `load`, or the argument names of PyTriton's style."""

    def __init__(self, function: Callable[..., Any], state: object) -> None:
        self.function, self._state = function, state
        self._style = getattr(function, _STYLE, "")
        parameters = [
            each
            for each in _parameters(function)
            if each.default is inspect.Parameter.empty or each.kind is inspect.Parameter.VAR_KEYWORD
        ]
        positional = [each for each in parameters if each.kind is not inspect.Parameter.VAR_KEYWORD]
        self._keyword = ""
        if self._style:
            # PyTriton passes the batch by the input's name.
            self._keyword = positional[0].name if positional else "images"
        self._with_state = not self._style and len(positional) == 2
        if len(positional) > 1 + self._with_state:
            raise FunctionError(
                f"{function.__name__} needs {len(positional)} arguments, but it is given the batch of images, and as a "
                "second argument what load() returned"
            )

    def __call__(self, batch: Any, count: int) -> object:  # noqa: ANN401  # an array or a tensor
        """The function's answer to a batch of `count` images."""
        if self._style == SAMPLE:
            rows = [self.function(**{self._keyword: batch[number]}) for number in range(count)]
            return _stacked(rows)
        if self._style == BATCH:
            return self.function(**{self._keyword: batch})
        return self.function(batch, self._state) if self._with_state else self.function(batch)


def arranged(images: Tensor, wanted: str) -> Tensor:
    """Convert images fp32 [N, 3, H, W] to one of INPUTS; for uint8 they must be pixels of 0 to 255."""
    dtype, _, order = wanted.partition("-")
    if dtype == "uint8":
        images = images.round().clamp(0, 255).to(torch.uint8)
    return (images.permute(0, 2, 3, 1) if order == "nhwc" else images).contiguous()


def chosen(result: object, which: str) -> object:
    """One of several results, by name or number; raises FunctionError that lists the results."""
    if isinstance(result, Mapping):
        names = [str(name) for name in result]
        if not which and len(names) == 1:
            return next(iter(result.values()))
        if which in names:
            return result[which]
        raise FunctionError(f"it returns {', '.join(names)}: choose the scores with --output NAME")
    if isinstance(result, (list, tuple)) and not _is_rows(result):
        if not which and len(result) == 1:
            return result[0]
        if which.isdecimal() and int(which) < len(result):
            return result[int(which)]
        raise FunctionError(f"it returns {len(result)} values: choose the scores with --output INDEX, 0 is the first")
    if which:
        raise FunctionError(f"it returns one value, so there is nothing for --output {which} to choose")
    return result


def _is_rows(result: Any) -> bool:  # noqa: ANN401
    """Whether a list has rows of numbers and is therefore the scores."""
    return bool(result) and all(
        isinstance(row, (list, tuple)) and all(isinstance(score, (int, float)) for score in row) for row in result
    )


def _tensor(scores: object) -> Tensor:
    if isinstance(scores, Tensor):
        return scores
    array = np.asarray(scores)
    if array.dtype.kind not in "fiu":
        raise FunctionError(f"scores are numbers, and these are {type(scores).__name__} of {array.dtype}")
    return torch.from_numpy(np.array(array, dtype=np.float32))


def _stacked(rows: list[Any]) -> object:
    """Stack the results for single images into those for a batch."""
    if isinstance(rows[0], Mapping):
        return {name: np.stack([np.asarray(row[name]) for row in rows]) for name in rows[0]}
    if isinstance(rows[0], (list, tuple)):
        return [np.stack([np.asarray(part) for part in parts]) for parts in zip(*rows, strict=True)]
    return np.stack([np.asarray(row) for row in rows])


def _imported(code: Path, name: str) -> types.ModuleType:
    sys.path.insert(0, str(code))
    sys.dont_write_bytecode = True
    _stand_in_for_pytriton()
    # Under another name if that is taken by a loaded module, such as Triton's model.py.
    spec = importlib.util.spec_from_file_location(
        f"function_{name}" if name in sys.modules else name, code / f"{name}.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except FunctionError:
        raise
    except ModuleNotFoundError as exc:
        raise FunctionError(
            f"{name}.py imports {exc.name!r}, which this environment does not have: install it (and name it in "
            "requirements.txt), or add the file that has it with --include"
        ) from exc
    except (Exception, SystemExit) as exc:
        raise FunctionError(f"{name}.py cannot be imported: {described(exc)}") from exc
    return module


def _callable(module: types.ModuleType, name: str, device: str, label: str) -> tuple[_Call, str]:
    """The callable of a module, ready to be called, and the input that its annotation names."""
    function = getattr(module, name, None)
    if not callable(function):
        raise FunctionError(f"{label}: there is no such function")
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise FunctionError(f"{label} is asynchronous or a generator: it must return the scores of its batch")
    try:
        load = getattr(module, "load", None)
        state = _with_device(load, device) if callable(load) and load is not function else None
        if inspect.isclass(function):
            function = _with_device(function, device)
    except (Exception, SystemExit) as exc:
        raise FunctionError(f"{label} could not be loaded: {described(exc)}") from exc
    if not callable(function):
        raise FunctionError(f"{name} is a class without __call__, which would take the batch")
    call = _Call(function, state)
    return call, _input_of(_first_annotation(function))


def _with_device(function: Callable[..., Any], device: str) -> Any:  # noqa: ANN401  # whatever it returns
    takes = [each for each in _parameters(function) if each.default is inspect.Parameter.empty]
    return function(device) if takes else function()


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        found = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # builtins have no signature
        return []
    return [each for each in found if each.kind is not inspect.Parameter.VAR_POSITIONAL]


def _first_annotation(function: Callable[..., Any]) -> object:
    """The type of the first parameter, or None."""
    parameters = _parameters(function)
    if not parameters:
        return None
    target = function if inspect.isroutine(function) else type(function).__call__
    try:
        return typing.get_type_hints(target).get(parameters[0].name)
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


def described(exc: BaseException) -> str:
    """An exception as one line, with the file and line that raised it."""
    frame = exc.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    where = f" ({Path(frame.tb_frame.f_code.co_filename).name}, line {frame.tb_lineno})" if frame else ""
    return f"{type(exc).__name__}: {exc}{where}"


def _stand_in_for_pytriton() -> None:
    """Provide the names that files for PyTriton import: `batch` and `sample` mark a function, the rest does nothing."""

    def mark(style: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            setattr(function, _STYLE, style)
            return function

        return decorate

    def missing(name: str) -> Any:  # noqa: ANN401  # any name
        if name.startswith("__"):
            raise AttributeError(name)
        raise FunctionError(f"PyTriton's {name} has no counterpart here: use @batch, which Triton fills")

    class Triton:
        def __init__(self, *_: object, **__: object) -> None:
            raise FunctionError(
                "Triton() is started by `gateway up` here: put bind() and serve() under if __name__ == '__main__'"
            )

    def inert(*_: object, **__: object) -> None:
        return None

    parts: dict[str, dict[str, Any]] = {
        "decorators": {BATCH: mark(BATCH), SAMPLE: mark(SAMPLE), "__getattr__": missing},
        "model_config": {"Tensor": inert, "ModelConfig": inert, "DynamicBatcher": inert, "__getattr__": missing},
        "triton": {"Triton": Triton, "TritonConfig": inert, "__getattr__": missing},
    }
    package = types.ModuleType("pytriton")
    package.__path__ = []
    sys.modules["pytriton"] = package
    for name, contents in parts.items():
        part = types.ModuleType(f"pytriton.{name}")
        vars(part).update(contents)
        sys.modules[part.__name__] = part
        setattr(package, name, part)
