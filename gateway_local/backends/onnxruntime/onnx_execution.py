"""Runs Triton's requests as batches of an ONNX model, in either library.

../pytorch/model.py imports this module too.
"""

import ctypes
import os
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

CUDA_FAILURE = re.compile(r"CUDA (failure|error) (?P<code>\d+)")
STICKY = {46, 214, 219, 220, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 999}
"""Errors of CUDA's runtime (driver_types.h) after which only a new process can use the GPU."""
LOST_GPU = 74
"""Exit code of a process that can no longer use its GPU (EX_IOERR of sysexits.h)."""
USED_CAPSULE = b"used_dltensor"
"""DLPack's name of a capsule whose tensor was taken over. Triton gives it another name, for which numpy's destructor of
the capsule would print an error."""


class Execution:
    """Executes requests by a session; `inputs` and `outputs` map Triton's names of tensors to the session's."""

    def __init__(self, session: Any, inputs: Mapping[str, str], outputs: Mapping[str, str]) -> None:  # noqa: ANN401
        self.session, self.inputs, self.outputs = session, inputs, outputs

    def execute(self, requests: list[Any]) -> list[Any]:
        """Run the requests as one batch; if that fails, one by one, so that each gets its own response or error."""
        try:
            return self._run(requests)
        except Exception as exc:  # Triton must get one response for each request, for any error
            end_if_gpu_is_lost(exc)
            if len(requests) > 1:
                return [self.execute([request])[0] for request in requests]
            return [pb_utils.InferenceResponse(error=pb_utils.TritonError(f"{type(exc).__name__}: {exc}"))]

    def _run(self, requests: list[Any]) -> list[Any]:
        given = [
            [array(pb_utils.get_input_tensor_by_name(request, name)) for name in self.inputs] for request in requests
        ]
        feed = {
            name: np.concatenate(parts) if len(parts) > 1 else parts[0]
            for name, *parts in zip(self.inputs.values(), *given, strict=True)
        }
        results = self.session.run([*self.outputs.values()], feed)
        responses, start = [], 0
        for tensors in given:
            rows = slice(start, start + len(tensors[0]))
            start = rows.stop
            named = zip(self.outputs, results, strict=True)
            responses.append(pb_utils.InferenceResponse([output(name, result[rows]) for name, result in named]))
        return responses


def end_if_gpu_is_lost(exc: Exception) -> None:
    """End this process if the error means that its GPU is no longer usable.

    After some errors, such as a device-side assert or a GPU that fell off the bus, a process cannot use its CUDA
    context again: it would fail every request, while Triton reports it as ready. The gateway recovers from a process
    that died.
    """
    match = CUDA_FAILURE.search(str(exc))
    if match and int(match["code"]) in STICKY:
        pb_utils.Logger.log_error(f"the GPU is lost to this process, which ends: {exc}")
        os._exit(LOST_GPU)  # without cleaning up, which needs the GPU


def array(tensor: Any) -> NDArray[Any]:  # noqa: ANN401  # Triton's
    """An input in host memory, from which ONNX Runtime copies it to its device."""
    if tensor.is_cpu():
        return np.from_dlpack(tensor)
    import torch

    found: NDArray[Any] = torch.from_dlpack(tensor.to_dlpack()).cpu().numpy()
    return found


def output(name: str, result: NDArray[Any]) -> Any:  # noqa: ANN401  # Triton's
    """An output tensor, by DLPack, since the backend's own conversion from numpy is built against numpy 1."""
    capsule = np.ascontiguousarray(result).__dlpack__()
    made = pb_utils.Tensor.from_dlpack(name, capsule)
    ctypes.pythonapi.PyCapsule_SetName(ctypes.py_object(capsule), ctypes.c_char_p(USED_CAPSULE))
    return made
