"""Calls a post-processing step; `gateway model postprocess`, `gateway model verify` and Triton run the same code.

served.json has `module`, `callable`, the `classes` and the embeddings' `size` of the network, and `own_classes`, the
number of scores that the step returns (0: not known yet). code/ has the module and its files. torch is not imported,
so that the process starts quickly and takes little memory.
"""

import ctypes
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from served_code import UserCodeError, described, imported, needed  # type: ignore[import-not-found]

__all__ = ["Served", "UserCodeError", "described"]
CONFIG, CODE = "served.json", "code"
SCORES, FEATURES, PREDICTION = "SCORES", "FEATURES", "PREDICTION"
USED_CAPSULE = b"used_dltensor"
"""DLPack's name of a capsule whose tensor was taken over. Triton gives it another name, about which numpy's destructor
of the capsule would print an error."""
Scores = NDArray[np.float32]


class Served:
    """The step of a folder; raises UserCodeError if its code cannot be imported."""

    def __init__(self, folder: Path, args: object = None) -> None:  # noqa: ARG002  # Triton's
        config = json.loads((folder / CONFIG).read_text())
        self.name = f"{config['callable']} of {config['module']}.py"
        self.classes: int = config["classes"]
        self._own_classes: int = config["own_classes"]
        self._function = getattr(imported(folder / CODE, config["module"]), config["callable"], None)
        if not callable(self._function):
            raise UserCodeError(f"{self.name}: there is no such function")
        self.takes_embeddings = _arguments(self._function, self.name) == 2
        if self.takes_embeddings and not config["size"]:
            raise UserCodeError(
                f"{self.name} takes embeddings as its second argument, and the network gives none: add it with "
                "--embeddings"
            )

    def __call__(self, scores: Scores, embeddings: Scores | None = None) -> Scores:
        """Its scores fp32 [N, own classes] for the network's scores fp32 [N, classes] and embeddings fp32 [N, size].

        Raises UserCodeError, and the function's exceptions.
        """
        assert self._function is not None
        # A function may write into its argument, which may be memory of Triton's.
        result = self._function(scores.copy(), embeddings) if self.takes_embeddings else self._function(scores.copy())
        array = np.asarray(result)
        if array.dtype.kind not in "fiu" or array.ndim != 2 or len(array) != len(scores) or not array.shape[1]:
            raise UserCodeError(
                f"{self.name} returned {array.dtype} {list(array.shape)} for a batch of {len(scores)}, and a row of "
                "scores for each image, [N, classes], is expected"
            )
        if self._own_classes and array.shape[1] != self._own_classes:
            raise UserCodeError(
                f"{self.name} returned {array.shape[1]} scores for an image, and there are {self._own_classes} labels: "
                "name its classes in a file, one per line in their order (--labels)"
            )
        found: Scores = np.array(array, np.float32)
        if not np.isfinite(found).all():
            raise UserCodeError(f"{self.name} returned scores that are not finite numbers")
        return found

    def scores(self, rows: Any) -> Scores:  # noqa: ANN401  # an array, or torch's tensor
        """The same for rows that have the scores and then the embedding of an image: fp32 [N, classes + size]."""
        found = np.asarray(rows)
        return self(found[:, : self.classes], found[:, self.classes :] if self.takes_embeddings else None)

    def responses(self, requests: list[Any]) -> list[Any]:
        """Triton's responses: SCORES fp32 [N, classes], maybe FEATURES fp32 [N, size] → PREDICTION [N, own classes]."""
        import triton_python_backend_utils as pb_utils

        def batch(name: str) -> list[NDArray[Any]]:
            return [np.from_dlpack(pb_utils.get_input_tensor_by_name(request, name)) for request in requests]

        scores = batch(SCORES)
        embeddings = np.concatenate(batch(FEATURES)) if self.takes_embeddings else None
        parts = np.split(self(np.concatenate(scores), embeddings), np.cumsum([len(each) for each in scores])[:-1])
        return [pb_utils.InferenceResponse([_output(part, pb_utils)]) for part in parts]

    def end_if_unusable(self) -> None:
        """A step needs nothing that it can lose."""


def _output(array: Scores, pb_utils: Any) -> Any:  # noqa: ANN401  # Triton's
    """An output tensor, by DLPack, since Triton 2.51's own conversion from numpy is built against numpy 1."""
    capsule = np.array(array).__dlpack__()
    made = pb_utils.Tensor.from_dlpack(PREDICTION, capsule)
    ctypes.pythonapi.PyCapsule_SetName(ctypes.py_object(capsule), ctypes.c_char_p(USED_CAPSULE))
    return made


def _arguments(function: Any, name: str) -> int:  # noqa: ANN401  # a callable
    """How many arguments a function takes: 1, or 2 with the embeddings; raises UserCodeError."""
    count = len(needed(function))
    if count not in (1, 2):
        raise UserCodeError(
            f"{name} needs {count} arguments, but it is given the scores of a batch, and as a second argument "
            "the embeddings"
        )
    return count
