"""A Python-based Triton backend that runs ONNX, for servers without the onnxruntime backend.

Triton takes it for `platform: "onnxruntime_onnx"` where it finds `onnxruntime/model.py` in its backend directory, so
one model repository serves here and under the real backend. config.pbtxt has the same effect: tensors by name, instance
kinds, versions, these parameters of https://github.com/triton-inference-server/onnxruntime_backend:
intra_op_thread_count, inter_op_thread_count, execution_mode, and optimization.graph.level; and the accelerator
"openvino" for instances on a CPU. That accelerator's parameter `precision` (fp32 or bf16) has an effect here only.

torch is imported only on a GPU: without torch, a process starts in a fifth of the time.
"""

import importlib
import json
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils

# Modules in this folder, which Triton's stub adds to sys.path.
from elastic import opened
from onnx_execution import Execution


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
        names = ({name: name for name in names} for names in (self.inputs, self.outputs))
        self.execution = Execution(self.session, *names)
        pb_utils.Logger.log_info(f"{args['model_instance_name']} runs {path} by {self.session.described}")

    def execute(self, requests: list[Any]) -> list[Any]:
        """Run the requests as one batch; if that fails, one by one, so that each gets its own response or error."""
        return self.execution.execute(requests)

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


def session_of(path: Path, config: dict[str, Any], parameters: dict[str, str], args: dict[str, str]) -> Any:  # noqa: ANN401
    """The model in the library that config.pbtxt names, on the instance's device; raises TritonModelException.

    `described` of a session is that library, `inputs` and `outputs` are its tensors' names, and `run(outputs, feed)`
    returns the outputs of a batch as arrays that the session does not use again.
    """
    # Imported here, so that a process loads one of the libraries. Triton's stub adds this folder to sys.path.
    library, sessions, package = "ONNX Runtime", "on_onnxruntime", "onnxruntime"
    accelerator = cpu_accelerator(config) if args["model_instance_kind"] != "GPU" else None
    if accelerator is not None:
        library, sessions, package = "OpenVINO", "on_openvino", "openvino"
        parameters = {**parameters, **(accelerator.get("parameters") or {})}
    try:
        module = importlib.import_module(sessions)
        return opened(lambda given: module.Session(path, config, given, args), path, parameters, args)
    except ImportError as exc:
        raise pb_utils.TritonModelException(
            f"{path} is configured for {library}, which is not installed ({exc}): pip install {package}"
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
