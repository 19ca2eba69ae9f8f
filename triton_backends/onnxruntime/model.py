"""A Python-based Triton backend that runs ONNX, for servers without the onnxruntime backend.

Triton takes it for `platform: "onnxruntime_onnx"` where it finds `onnxruntime/model.py` in its backend directory, so
one model repository serves here and under the real backend. config.pbtxt has the same effect: tensors by name, instance
kinds, versions, these parameters of https://github.com/triton-inference-server/onnxruntime_backend:
intra_op_thread_count, inter_op_thread_count, execution_mode, and optimization.graph.level; and the accelerator
"openvino" for instances on a CPU. That accelerator's parameter `precision` (fp32 or bf16) has an effect here only.

torch is imported only on a GPU: without torch, a process starts in a fifth of the time.
"""

import ctypes
import importlib
import json
import os
import re
from pathlib import Path
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
"""DLPack's name of a capsule whose tensor was taken over. Triton gives it another name, about which numpy's destructor
of the capsule would print an error."""


class TritonPythonModel:
    """One instance of an ONNX model on one device."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load model.onnx onto the instance's device; raises TritonModelException, with what to do, if it cannot."""
        config = json.loads(args["model_config"])
        parameters = {name: entry["string_value"] for name, entry in config["parameters"].items()}
        path = Path(pb_utils.get_model_dir()) / (config.get("default_model_filename") or "model.onnx")
        if not path.is_file():
            raise pb_utils.TritonModelException(f"there is no {path}: `gateway model add` writes it")
        self.session = session_of(path, config, parameters, args)
        self.inputs = [tensor["name"] for tensor in config["input"]]
        self.outputs = [tensor["name"] for tensor in config["output"]]
        self._check_names()
        pb_utils.Logger.log_info(f"{args['model_instance_name']} runs {path} by {self.session.described}")

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
            ("input", self.inputs, self.session.inputs),
            ("output", self.outputs, self.session.outputs),
        ):
            missing = [name for name in configured if name not in tensors]
            if missing:
                raise pb_utils.TritonModelException(
                    f"config.pbtxt has {kind} {missing[0]!r}, and the ONNX model has {', '.join(tensors)}"
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


def session_of(path: Path, config: dict[str, Any], parameters: dict[str, str], args: dict[str, str]) -> Any:  # noqa: ANN401
    """The model in the library that config.pbtxt names, on the instance's device; raises TritonModelException.

    `described` of a session is that library, `inputs` and `outputs` are its tensors' names, and `run(outputs, feed)`
    returns the outputs of a batch as arrays that the session does not use again.
    """
    # Imported here, so that a process loads one of the libraries: modules beside this file, whose folder Triton's stub
    # adds to sys.path.
    library, sessions, package = "ONNX Runtime", "on_onnxruntime", "onnx"
    accelerator = cpu_accelerator(config) if args["model_instance_kind"] != "GPU" else None
    if accelerator is not None:
        library, sessions, package = "OpenVINO", "on_openvino", "openvino"
        parameters = {**parameters, **(accelerator.get("parameters") or {})}
    try:
        module = importlib.import_module(sessions)
        return module.Session(path, config, parameters, args)
    except ImportError as exc:
        raise pb_utils.TritonModelException(
            f"{path} is configured for {library}, which is not installed ({exc}): "
            f"pip install 'triton-image-gateway[{package}]'"
        ) from exc
    except pb_utils.TritonModelException:
        raise
    except Exception as exc:  # the errors of these libraries have no common base class
        raise pb_utils.TritonModelException(f"{path} is not an ONNX model that {library} runs: {exc}") from exc


def cpu_accelerator(config: dict[str, Any]) -> dict[str, Any] | None:
    """The entry of OpenVINO in config.pbtxt, None without one; raises TritonModelException for other accelerators."""
    accelerators = (config.get("optimization") or {}).get("execution_accelerators") or {}
    found: list[dict[str, Any]] = accelerators.get("cpu_execution_accelerator") or []
    unknown = [each["name"] for each in found if each["name"] != "openvino"]
    if unknown:
        raise pb_utils.TritonModelException(
            f"cpu_execution_accelerator has {unknown[0]!r}, and only 'openvino' is known: correct config.pbtxt"
        )
    return found[0] if found else None
