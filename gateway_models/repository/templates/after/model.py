"""A post-processing step as a Triton model: this file, served_step.py, served_code.py, step.json, and code/.

Written by `gateway model add --postprocess`, `gateway model postprocess` and `gateway model calibrate`. torch is not
imported, so that the process starts quickly and takes little memory.
"""

import ctypes
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

# Files in this folder.
from served_code import UserCodeError, answers  # type: ignore[import-not-found]  # noqa: E402
from served_step import ServedStep  # type: ignore[import-not-found]  # noqa: E402

SCORES, FEATURES, PREDICTION = "SCORES", "FEATURES", "PREDICTION"
USED_CAPSULE = b"used_dltensor"
"""DLPack's name of a capsule whose tensor was taken over. Triton gives it another name, about which numpy's destructor
of the capsule would print an error."""


class TritonPythonModel:
    """SCORES fp32 [N, the network's classes], maybe FEATURES fp32 [N, size] → PREDICTION fp32 [N, its own classes]."""

    def initialize(self, args: dict[str, str]) -> None:
        """Import the step's code; raises TritonModelException."""
        try:
            self.step = ServedStep(HERE)
        except UserCodeError as exc:
            pb_utils.Logger.log_error(traceback.format_exc())
            raise pb_utils.TritonModelException(str(exc)) from exc
        pb_utils.Logger.log_info(f"{args['model_instance_name']} runs {self.step.name}")

    def execute(self, requests: list[Any]) -> list[Any]:
        """Call the step once for all requests; if that fails, once for each, so that each gets its own error."""
        found: list[Any] = answers(requests, self._run, self.step.name, lambda: None)
        return found

    def _run(self, requests: list[Any]) -> list[Any]:
        scores = [tensor(request, SCORES) for request in requests]
        embeddings = None
        if self.step.takes_embeddings:
            embeddings = np.concatenate([tensor(request, FEATURES) for request in requests])
        answers = self.step(np.concatenate(scores), embeddings)
        ends = np.cumsum([len(each) for each in scores])[:-1]
        return [pb_utils.InferenceResponse([output(PREDICTION, part)]) for part in np.split(answers, ends)]


def tensor(request: Any, name: str) -> NDArray[Any]:  # noqa: ANN401  # Triton's
    """An input as an array."""
    return np.from_dlpack(pb_utils.get_input_tensor_by_name(request, name))


def output(name: str, array: NDArray[np.float32]) -> Any:  # noqa: ANN401  # Triton's
    """An output tensor, by DLPack, since Triton 2.51's own conversion from numpy is built against numpy 1."""
    capsule = np.array(array).__dlpack__()
    made = pb_utils.Tensor.from_dlpack(name, capsule)
    ctypes.pythonapi.PyCapsule_SetName(ctypes.py_object(capsule), ctypes.c_char_p(USED_CAPSULE))
    return made
