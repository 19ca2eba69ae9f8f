"""A Python function as a Triton model: this file, served_function.py, served_code.py, function.json, and code/.

Written by `gateway model add FILE.py:NAME`; function.json has the function's parameters.
"""

import os
import sys
import traceback
from pathlib import Path
from typing import Any

import torch
import triton_python_backend_utils as pb_utils
from torch.utils.dlpack import from_dlpack

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

# Files in this folder.
from served_code import UserCodeError, answers  # type: ignore[import-not-found]  # noqa: E402
from served_function import ServedFunction  # type: ignore[import-not-found]  # noqa: E402

INPUT, OUTPUT = "input__0", "output__0"
LOST_GPU = 74
"""Exit code of a process that has lost its GPU (EX_IOERR of sysexits.h)."""


class TritonPythonModel:
    """One process with the function: images fp32 [N, 3, H, W] → probabilities fp32 [N, classes]."""

    def initialize(self, args: dict[str, str]) -> None:
        """Import the function's file and call its `load`; raises TritonModelException."""
        # One core for each instance, so that instances do not compete for cores.
        torch.set_num_threads(1)
        on_gpu = args["model_instance_kind"] == "GPU" and torch.cuda.is_available()
        self.device = f"cuda:{args['model_instance_device_id']}" if on_gpu else "cpu"
        try:
            self.function = ServedFunction(HERE, self.device)
        except UserCodeError as exc:
            pb_utils.Logger.log_error(traceback.format_exc())
            raise pb_utils.TritonModelException(str(exc)) from exc
        pb_utils.Logger.log_info(f"{args['model_instance_name']} runs {self.function.name} for {self.device}")

    def execute(self, requests: list[Any]) -> list[Any]:
        """Call the function once for all requests; if that fails, once for each, so that each gets its own error."""
        found: list[Any] = answers(requests, self._run, self.function.name, self._end_if_gpu_is_lost)
        return found

    def _run(self, requests: list[Any]) -> list[Any]:
        # DLPack both ways: the backend's own conversion to numpy is built against numpy 1.
        given = [from_dlpack(pb_utils.get_input_tensor_by_name(request, INPUT).to_dlpack()) for request in requests]
        batch = torch.cat(given) if len(given) > 1 else given[0]
        parts = self.function.probabilities(batch).split([len(images) for images in given])
        return [pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack(OUTPUT, part.contiguous())]) for part in parts]

    def _end_if_gpu_is_lost(self) -> None:
        """End this process if its GPU is unusable: it would fail every request and still be ready."""
        if self.device == "cpu":
            return
        try:
            torch.zeros(1, device=self.device).add_(1).item()
        except torch.OutOfMemoryError:
            return
        except RuntimeError as exc:
            pb_utils.Logger.log_error(f"the GPU is lost to this process, which ends: {exc}")
            os._exit(LOST_GPU)  # without cleaning up, which needs the GPU
