"""ONNX models in ONNX Runtime, on a CPU or a GPU."""

import ctypes
import time
from pathlib import Path
from typing import Any

import onnxruntime
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

LEVELS = {
    -1: onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
    1: onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    2: onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
}
"""optimization.graph.level → ONNX Runtime's level; any other value is its default, ORT_ENABLE_ALL."""

PAUSE_SECONDS = 2.0
"""A pause after which memory for batches is returned: of EfficientNet-Lite0, 130 of 190 MB. To take it again costs the
first batch some 30 ms."""
SHRINKING = onnxruntime.RunOptions()
SHRINKING.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")


class Session:
    """A model on one device; see `session_of` of model.py."""

    def __init__(self, path: Path, config: dict[str, Any], parameters: dict[str, str], args: dict[str, str]) -> None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        # One core per instance by default, so that instances do not compete for cores.
        options.intra_op_num_threads = int(parameters.get("intra_op_thread_count", 1))
        options.inter_op_num_threads = int(parameters.get("inter_op_thread_count", 1))
        options.add_session_config_entry("session.intra_op.allow_spinning", parameters.get("allow_spinning", "1"))
        if parameters.get("execution_mode") == "1":
            options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
        level = int(((config.get("optimization") or {}).get("graph") or {}).get("level", 0))
        options.graph_optimization_level = LEVELS.get(level, onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL)
        self._session = onnxruntime.InferenceSession(str(path), options, providers=providers_of(args))
        self.described = f"ONNX Runtime, {self._session.get_providers()[0]}"
        self.inputs = [tensor.name for tensor in self._session.get_inputs()]
        self.outputs = [tensor.name for tensor in self._session.get_outputs()]
        self._on_cpu = args["model_instance_kind"] != "GPU"
        self._has_grown, self._ran_at = False, time.monotonic()

    def may_shrink(self) -> bool:
        """Whether a lone image would now return the memory that larger batches have taken."""
        return self._on_cpu and self._has_grown and time.monotonic() - self._ran_at > PAUSE_SECONDS

    def run(self, outputs: list[str], feed: dict[str, NDArray[Any]]) -> list[NDArray[Any]]:
        """The outputs of a batch. A lone image after a pause returns the memory that larger batches have taken."""
        size = max(map(len, feed.values()))
        shrinks = size == 1 and self.may_shrink()
        self._has_grown |= size > 1
        self._ran_at = time.monotonic()
        found: list[NDArray[Any]] = self._session.run(outputs, feed, SHRINKING if shrinks else None)
        if shrinks:
            self._has_grown = False
            ctypes.CDLL(None).malloc_trim(0)
        return found


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
