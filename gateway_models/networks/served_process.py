"""Measures the memory of a network as it is served: python served_process.py, with JSON on stdin and stdout.

It runs the Python-based backend that Triton's stub would run, with a stand-in for Triton's module. The input has
`code`, the backend's model.py; `folder`, the folder of the network; `config`, the model's configuration as JSON; and
`images`, the size of the largest batch. The answer has the memory of this process without mapped files, in bytes:
`loaded_bytes` after a batch of one image, and `peak_bytes` after a batch of `images`.

It imports nothing of the project, since that would count as well. Only the standard library and numpy are imported,
which the backends need too.
"""

import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

KIB = 1024
TYPES = {"TYPE_FP32": np.float32, "TYPE_UINT8": np.uint8, "TYPE_FP16": np.float16}


class Tensor:
    """The part of Triton's Tensor that the backends use."""

    def __init__(self, name: str, value: Any) -> None:  # noqa: ANN401  # an array, or a capsule of DLPack
        self._name, self._value = name, value

    @classmethod
    def from_dlpack(cls, name: str, value: Any) -> "Tensor":  # noqa: ANN401
        """An output; its content is not needed."""
        return cls(name, value)

    def name(self) -> str:
        """The tensor's name."""
        return self._name

    def shape(self) -> Sequence[int]:
        """The tensor's shape."""
        return tuple(self._value.shape)

    def is_cpu(self) -> bool:
        """It is always in host memory."""
        return True

    def to_dlpack(self) -> Any:  # noqa: ANN401
        """A capsule of DLPack."""
        return self._value.__dlpack__()

    def __dlpack__(self, **options: Any) -> Any:  # noqa: ANN401
        return self._value.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:  # noqa: ANN401
        return self._value.__dlpack_device__()


class InferenceResponse:
    """The part of Triton's InferenceResponse that the backends use."""

    def __init__(self, output_tensors: Sequence[Tensor] = (), error: Exception | None = None) -> None:
        self.outputs, self.error = output_tensors, error


class TritonModelException(Exception):  # Triton's name
    """A model that cannot be loaded, or a request that fails."""


def triton_module(folder: str) -> ModuleType:
    """A stand-in for triton_python_backend_utils, for a network in a folder."""
    silent = SimpleNamespace(log_info=_ignore, log_warn=_ignore, log_error=_ignore)
    module = ModuleType("triton_python_backend_utils")
    vars(module).update(
        Tensor=Tensor,
        InferenceResponse=InferenceResponse,
        TritonError=TritonModelException,
        TritonModelException=TritonModelException,
        Logger=silent,
        get_model_dir=lambda: folder,
        get_input_tensor_by_name=lambda request, name: request[name],
    )
    return module


def measure(code: Path, folder: str, config: dict[str, Any], images: int) -> dict[str, int]:
    """The memory of this process after it has loaded the network, and at most; raises the backend's errors."""
    sys.path.insert(0, str(code.parent))
    sys.modules["triton_python_backend_utils"] = triton_module(folder)
    spec = importlib.util.spec_from_file_location("model", code)
    assert spec is not None
    assert spec.loader is not None
    backend = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(backend)
    model = backend.TritonPythonModel()
    arguments = {"model_instance_kind": "CPU", "model_instance_device_id": "0", "model_instance_name": config["name"]}
    model.initialize({**arguments, "model_config": json.dumps(config)})
    generator = np.random.default_rng(0)
    memory = []
    for size in (1, images):
        request = {}
        for tensor in config["input"]:
            shape = (size, *map(int, tensor["dims"]))
            values = generator.random(shape, np.float32) * (255 if tensor["data_type"] == "TYPE_UINT8" else 1)
            request[tensor["name"]] = Tensor(tensor["name"], values.astype(TYPES[tensor["data_type"]]))
            del values
        for response in model.execute([request]):
            if response.error is not None:
                raise response.error
        memory.append(own_bytes())
    return {"loaded_bytes": memory[0][0], "peak_bytes": max(memory[1])}


def own_bytes() -> tuple[int, int]:
    """The memory of this process without mapped files, now and at most, in bytes (proc_pid_status(5))."""
    lines = Path("/proc/self/status").read_text().splitlines()
    values = dict(line.split(":", 1) for line in lines if ":" in line)
    now, peak, files = (int(values[name].split()[0]) * KIB for name in ("VmRSS", "VmHWM", "RssFile"))
    return now - files, peak - files


def _ignore(message: str) -> None:
    """Log nothing."""


def main() -> None:
    """Read what to measure, and write the result."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # a user's function may print anything
    given = json.load(sys.stdin)
    json.dump(measure(Path(given["code"]), given["folder"], given["config"], given["images"]), answers)
    answers.flush()


if __name__ == "__main__":
    main()
