"""ONNX models in OpenVINO, on a CPU."""

import sys
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

# Importing OpenVINO sends an event to its makers unless this package is missing; serving needs nothing of it.
sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
import openvino  # noqa: E402

PRECISIONS = {"fp32": "f32", "bf16": "bf16"}
"""The accelerator's parameter `precision` → OpenVINO's name. A CPU without bf16 computes in fp32 in either case."""


class Session:
    """A model on the CPU; see `session_of` of model.py."""

    def __init__(self, path: Path, config: dict[str, Any], parameters: dict[str, str], args: dict[str, str]) -> None:  # noqa: ARG002
        wanted = parameters.get("precision", "fp32")
        if wanted not in PRECISIONS:
            raise pb_utils.TritonModelException(
                f"the accelerator openvino has the precision {wanted!r}: use {' or '.join(PRECISIONS)}"
            )
        # By its name, since OpenVINO would otherwise choose a reader by the file's content.
        frontend = openvino.frontend.FrontEndManager().load_by_framework("onnx")
        compiled = openvino.Core().compile_model(
            frontend.convert(frontend.load(str(path))),
            "CPU",
            {
                # One core per instance by default, so that instances do not compete for cores.
                "INFERENCE_NUM_THREADS": int(parameters.get("intra_op_thread_count", 1)),
                "NUM_STREAMS": 1,
                # Otherwise OpenVINO chooses bf16 where the CPU has it.
                "INFERENCE_PRECISION_HINT": PRECISIONS[wanted],
                # Otherwise the thread of each instance is bound to a core, possibly to the same.
                "ENABLE_CPU_PINNING": False,
            },
        )
        self._request = compiled.create_infer_request()
        used = compiled.get_property("INFERENCE_PRECISION_HINT").to_string()
        self.described = f"OpenVINO {openvino.__version__.partition('-')[0]} in {used}"
        # A tensor also has the names of tensors that it was merged with, such as a cast to its own type.
        self.inputs = [name for tensor in compiled.inputs for name in tensor.names]
        self.outputs = [name for tensor in compiled.outputs for name in tensor.names]

    def run(self, outputs: list[str], feed: dict[str, NDArray[Any]]) -> list[NDArray[Any]]:
        """The outputs of a batch."""
        results = self._request.infer(feed, share_inputs=True)
        return [results[name] for name in outputs]
