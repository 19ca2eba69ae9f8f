"""Calls the step after a network; the same code runs in the check of `gateway model add`, in `parity` and in Triton.

step.json has `module`, `callable`, the `classes` and the embeddings' `size` of the network, and `own_classes`, the
number of scores that the step returns (0: not known yet). code/ has the module and its files.
"""

import importlib.util
import inspect
import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

STEP, CODE = "step.json", "code"
Scores = NDArray[np.float32]


class StepFailed(Exception):
    """A step cannot be loaded, or what it returns cannot be served; the message names the reason and what to do."""


class ServedStep:
    """The step of a folder; raises StepFailed if its code cannot be imported."""

    def __init__(self, folder: Path) -> None:
        config = json.loads((folder / STEP).read_text())
        self.name = f"{config['callable']} of {config['module']}.py"
        self.classes: int = config["classes"]
        self._own_classes: int = config["own_classes"]
        self._function = getattr(_imported(folder / CODE, config["module"]), config["callable"], None)
        if not callable(self._function):
            raise StepFailed(f"{self.name}: there is no such function")
        self.takes_embeddings = _arguments(self._function, self.name) == 2
        if self.takes_embeddings and not config["size"]:
            raise StepFailed(
                f"{self.name} takes embeddings as its second argument, and the network gives none: add it with "
                "--embeddings auto"
            )

    def __call__(self, scores: Scores, embeddings: Scores | None = None) -> Scores:
        """Its scores fp32 [N, own classes] for the network's scores fp32 [N, classes] and embeddings fp32 [N, size].

        Raises StepFailed, and whatever the function raises.
        """
        assert self._function is not None
        # A function may write into its argument, which may be memory of Triton's.
        result = self._function(scores.copy(), embeddings) if self.takes_embeddings else self._function(scores.copy())
        array = np.asarray(result)
        if array.dtype.kind not in "fiu" or array.ndim != 2 or len(array) != len(scores) or not array.shape[1]:
            raise StepFailed(
                f"{self.name} returned {array.dtype} {list(array.shape)} for a batch of {len(scores)}, and a row of "
                "scores for each image, [N, classes], is expected"
            )
        if self._own_classes and array.shape[1] != self._own_classes:
            raise StepFailed(
                f"{self.name} returned {array.shape[1]} scores for an image, and there are {self._own_classes} labels: "
                "name its classes in a file, one per line in their order (--after-labels of gateway model add, "
                "--labels of gateway model after)"
            )
        found: Scores = np.array(array, np.float32)
        if not np.isfinite(found).all():
            raise StepFailed(f"{self.name} returned scores that are not finite numbers")
        return found

    def of_rows(self, rows: Scores) -> Scores:
        """The same for rows that have the scores and then the embedding of an image: fp32 [N, classes + size]."""
        return self(rows[:, : self.classes], rows[:, self.classes :] if self.takes_embeddings else None)


def described(exc: BaseException) -> str:
    """An exception as one line, with the file and line that raised it."""
    frame = exc.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    if isinstance(exc, StepFailed) or frame is None:
        return str(exc)
    return f"{type(exc).__name__}: {exc} ({Path(frame.tb_frame.f_code.co_filename).name}, line {frame.tb_lineno})"


def _arguments(function: Any, name: str) -> int:  # noqa: ANN401  # a callable
    """How many arguments a function takes: 1, or 2 with the embeddings; raises StepFailed."""
    needed = [
        each
        for each in inspect.signature(function).parameters.values()
        if each.default is inspect.Parameter.empty
        and each.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    ]
    if len(needed) not in (1, 2):
        raise StepFailed(
            f"{name} needs {len(needed)} arguments, but it is given the scores of a batch, and as a second argument "
            "the embeddings"
        )
    return len(needed)


def _imported(code: Path, name: str) -> types.ModuleType:
    sys.path.insert(0, str(code))
    sys.dont_write_bytecode = True
    # Under another name if that is taken by a loaded module, such as Triton's model.py.
    spec = importlib.util.spec_from_file_location(f"step_{name}" if name in sys.modules else name, code / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except ModuleNotFoundError as exc:
        raise StepFailed(
            f"{name}.py imports {exc.name!r}, which this environment does not have: install it where Triton runs, or "
            "add the file that has it with --include"
        ) from exc
    except (Exception, SystemExit) as exc:
        raise StepFailed(f"{name}.py cannot be imported: {described(exc)}") from exc
    return module
