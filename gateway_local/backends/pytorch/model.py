"""A Python-based Triton backend that runs TorchScript, for servers without the libtorch backend.

Triton takes it for `platform: "pytorch_libtorch"` where it finds `pytorch/model.py` in its backend directory, so one
model repository serves here and under the real backend. config.pbtxt has the same effect: tensors by
position, instance kinds, versions, and these parameters of https://github.com/triton-inference-server/pytorch_backend:
INTRA_OP_THREAD_COUNT, INTER_OP_THREAD_COUNT, DISABLE_OPTIMIZED_EXECUTION, INFERENCE_MODE.

On a CPU, ONNX Runtime runs a TorchScript network that has a cpu.onnx next to it (docs/adr/0047); the last two
parameters have no effect then. Such a process does not import torch: it starts sooner and needs less memory.
"""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils

# Modules of this folder, which Triton's stub adds to sys.path, and of the backend for ONNX.
sys.path.append(str(Path(__file__).resolve().parent.parent / "onnxruntime"))
from cpu_network import NETWORK, ONNXRUNTIME, Choice, choose
from elastic import opened
from positions import by_position


class TritonPythonModel:
    """One instance of a network on one device."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the network onto the instance's device; raises TritonModelException, with what to do, if it cannot."""
        config = json.loads(args["model_config"])
        parameters = {name: entry["string_value"] for name, entry in config["parameters"].items()}
        path = Path(pb_utils.get_model_dir()) / (config.get("default_model_filename") or "model.pt")
        if not path.is_file():
            raise pb_utils.TritonModelException(
                f"there is no {path}: `gateway model add` writes any model, `gateway model add default` this one"
            )
        name = args["model_instance_name"]
        choice = choose(path) if args["model_instance_kind"] == "CPU" else None
        self.instance = on_onnxruntime(path, choice, config, parameters, args) if choice else None
        if self.instance is None:
            # Imported here: a process that ONNX Runtime serves has no torch.
            self.instance = importlib.import_module("on_torch").Instance(path, config, parameters, args)
            reason = f": {choice.reason}" if choice else ""
            pb_utils.Logger.log_info(f"{name} runs {path} by {self.instance.described}{reason}")

    def execute(self, requests: list[Any]) -> list[Any]:
        """Run the requests as one batch; if that fails, one by one, so that each gets its own response or error."""
        responses: list[Any] = self.instance.execute(requests)
        return responses


def on_onnxruntime(
    path: Path, choice: Choice, config: dict[str, Any], parameters: dict[str, str], args: dict[str, str]
) -> Any:  # noqa: ANN401  # an Execution
    """The network in ONNX Runtime on the CPU; None where torch has to run it, with a warning if that is unexpected."""
    problem = choice.reason if choice.damaged else ""
    if choice.runtime == ONNXRUNTIME:
        try:
            return _execution(path, choice, config, parameters, args)
        except ImportError as exc:
            problem = f"ONNX Runtime is not installed ({exc}): pip install onnxruntime"
        except Exception as exc:  # ONNX Runtime's errors have no common base class
            problem = f"ONNX Runtime cannot run {NETWORK}: {exc}"
    if problem:
        pb_utils.Logger.log_warn(
            f"{args['model_instance_name']}: torch runs {path}, not ONNX Runtime: {problem}. "
            "Add the model again, or run `gateway model tune`"
        )
    return None


def _execution(
    path: Path, choice: Choice, config: dict[str, Any], parameters: dict[str, str], args: dict[str, str]
) -> Any:  # noqa: ANN401
    execution, sessions = (importlib.import_module(name) for name in ("onnx_execution", "on_onnxruntime"))
    threads = {
        "intra_op_thread_count": parameters.get("INTRA_OP_THREAD_COUNT", "1"),
        "inter_op_thread_count": parameters.get("INTER_OP_THREAD_COUNT", "1"),
    }
    network = path.with_name(NETWORK)
    session = opened(lambda given: sessions.Session(network, {}, given, args), network, threads, args)
    inputs, outputs = by_position(config["input"]), by_position(config["output"])
    if len(session.inputs) != len(inputs) or len(session.outputs) < len(outputs):
        raise ValueError(
            f"it has {len(session.inputs)} inputs and {len(session.outputs)} outputs, config.pbtxt has {len(inputs)} "
            f"and {len(outputs)}"
        )
    pb_utils.Logger.log_info(f"{args['model_instance_name']} runs {network} by {session.described}: {choice.reason}")
    return execution.Execution(
        session,
        dict(zip(inputs, session.inputs, strict=True)),
        dict(zip(outputs, session.outputs, strict=False)),
    )
