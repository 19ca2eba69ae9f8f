"""A Python-based Triton backend that runs ONNX, for servers without the onnxruntime backend.

Triton takes it for `platform: "onnxruntime_onnx"` where it finds `onnxruntime/model.py` in its backend directory, so
one model repository serves here and under the real backend. config.pbtxt has the same effect: tensors
by name, instance kinds, versions, and these parameters of https://github.com/triton-inference-server/onnxruntime_backend:
intra_op_thread_count, inter_op_thread_count, execution_mode, and optimization.graph.level.

torch is imported only on a GPU: without torch, a process starts in a fifth of the time.
"""

import ctypes
import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

LEVELS = {
    -1: onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
    1: onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    2: onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
}
"""optimization.graph.level → ONNX Runtime's level; any other value is its default, ORT_ENABLE_ALL."""

CUDA_FAILURE = re.compile(r"CUDA (failure|error) (?P<code>\d+)")
STICKY = {46, 214, 219, 220, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 999}
"""Errors of CUDA's runtime (driver_types.h) after which only a new process can use the GPU."""
LOST_GPU = 74
"""Exit code of a process that can no longer use its GPU (EX_IOERR of sysexits.h)."""
USED_CAPSULE = b"used_dltensor"
"""DLPack's name of a capsule whose tensor was taken over. Triton gives it another name, about which numpy's destructor
of the capsule would print an error."""


class TritonPythonModel:
    """One instance of an ONNX model on one device."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load model.onnx onto the instance's device; raises TritonModelException, with what to do, if it cannot."""
        config = json.loads(args["model_config"])
        parameters = {name: entry["string_value"] for name, entry in config["parameters"].items()}
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        # One core per instance by default, so that instances do not compete for cores.
        options.intra_op_num_threads = int(parameters.get("intra_op_thread_count", 1))
        options.inter_op_num_threads = int(parameters.get("inter_op_thread_count", 1))
        if parameters.get("execution_mode") == "1":
            options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
        level = int(((config.get("optimization") or {}).get("graph") or {}).get("level", 0))
        options.graph_optimization_level = LEVELS.get(level, onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL)
        path = Path(pb_utils.get_model_dir()) / (config.get("default_model_filename") or "model.onnx")
        if not path.is_file():
            raise pb_utils.TritonModelException(f"there is no {path}: `gateway model add` writes it")
        try:
            self.session = onnxruntime.InferenceSession(str(path), options, providers=providers_of(args))
        except Exception as exc:  # ONNX Runtime's errors have no common base class
            raise pb_utils.TritonModelException(f"{path} is not an ONNX model that runs: {exc}") from exc
        self.inputs = [tensor["name"] for tensor in config["input"]]
        self.outputs = [tensor["name"] for tensor in config["output"]]
        self._check_names()
        pb_utils.Logger.log_info(f"{args['model_instance_name']} runs {path} on {self.session.get_providers()[0]}")

    def execute(self, requests: list[Any]) -> list[Any]:
        """Run the requests as one batch; if that fails, one by one, so that each gets its own response or error."""
        try:
            return self._run(requests)
        except Exception as exc:  # Triton must get one response for each request, whatever the error
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
            for name, *parts in zip(self.inputs, *given, strict=True)
        }
        results = self.session.run(self.outputs, feed)
        responses, start = [], 0
        for tensors in given:
            rows = slice(start, start + len(tensors[0]))
            start = rows.stop
            named = zip(self.outputs, results, strict=True)
            responses.append(pb_utils.InferenceResponse([output(name, result[rows]) for name, result in named]))
        return responses

    def _check_names(self) -> None:
        for kind, configured, tensors in (
            ("input", self.inputs, self.session.get_inputs()),
            ("output", self.outputs, self.session.get_outputs()),
        ):
            there = [tensor.name for tensor in tensors]
            missing = [name for name in configured if name not in there]
            if missing:
                raise pb_utils.TritonModelException(
                    f"config.pbtxt has {kind} {missing[0]!r}, and the ONNX model has {', '.join(there)}"
                )


def end_if_gpu_is_lost(exc: Exception) -> None:
    """End this process if the error means that nothing will run on its GPU any more.

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


def providers_of(args: dict[str, str]) -> list[Any]:
    """ONNX Runtime's execution providers for an instance; raises TritonModelException if its GPU is not usable."""
    cpu = "CPUExecutionProvider"
    if args["model_instance_kind"] != "GPU":
        return [cpu]
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        raise pb_utils.TritonModelException(
            "instance_group asks for a GPU and this ONNX Runtime has no CUDA: use KIND_CPU, or install onnxruntime-gpu"
        )
    # torch's wheel contains CUDA's libraries, which ONNX Runtime looks for in the process.
    import torch  # noqa: F401

    return [("CUDAExecutionProvider", {"device_id": args["model_instance_device_id"]}), cpu]
