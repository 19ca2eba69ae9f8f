"""The form for ONNX Runtime next to a TorchScript network, by the code that Triton's backend uses."""

import importlib.util
import json
import sys
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from types import ModuleType

from gateway.values.files import whole_file
from gateway_local.paths import DEFAULT_BACKENDS


def backend_module(backend: str, name: str) -> ModuleType:
    """Load a backend's module from its path; Triton needs it in a folder that is not on the import path."""
    spec = importlib.util.spec_from_file_location(name, DEFAULT_BACKENDS / backend / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Its data classes look their module up.
    sys.modules.setdefault(name, module)
    spec.loader.exec_module(module)
    return module


_backend = backend_module("pytorch", "cpu_network")
NETWORK: str = _backend.NETWORK
RECORD: str = _backend.RECORD
FILES = (NETWORK, RECORD)
"""The files next to a model.pt."""


class CpuRuntime(StrEnum):
    """The runtime of a TorchScript network on a CPU."""

    ONNXRUNTIME = _backend.ONNXRUNTIME
    TORCHSCRIPT = _backend.TORCHSCRIPT

    @property
    def described(self) -> str:
        """Its name in texts."""
        return "ONNX Runtime" if self is CpuRuntime.ONNXRUNTIME else "TorchScript"


@dataclass(frozen=True, slots=True)
class CpuNetwork:
    """The choice for one network, and the measurements that it is based on."""

    runtime: CpuRuntime
    reason: str
    """Why, as a clause."""
    photographs: int = 0
    """How many photographs were compared."""
    difference: float = 0.0
    """The largest difference of a probability from model.pt's, over photographs and made-up images."""


def write(found: CpuNetwork, model: Path) -> None:
    """Write the record next to a model.pt, with the checksums of the files; raises OSError.

    If TorchScript runs it, the form for ONNX Runtime is removed.
    """
    record, network = asdict(found), model.with_name(NETWORK)
    if found.runtime is CpuRuntime.ONNXRUNTIME:
        record |= {"model_sha256": _backend.sha256(model), "onnx_sha256": _backend.sha256(network)}
    else:
        network.unlink(missing_ok=True)
    with whole_file(model.with_name(RECORD), mode=0o644) as draft:
        draft.write_text(json.dumps(record, indent=2) + "\n")


def remove(model: Path) -> None:
    """Remove the files next to a model.pt, if they are there."""
    for name in FILES:
        model.with_name(name).unlink(missing_ok=True)


def choice(model: Path) -> tuple[CpuRuntime, str]:
    """The runtime of a model.pt on a CPU, and the reason."""
    found = _backend.choose(model)
    return CpuRuntime(found.runtime), str(found.reason)
