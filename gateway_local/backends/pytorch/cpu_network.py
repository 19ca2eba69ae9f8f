"""Which runtime runs a TorchScript network on a CPU, as recorded when the network was added.

model.pt    the network, which libtorch runs on a GPU
cpu.onnx    the same network for ONNX Runtime, if its answers agree with model.pt's
cpu.json    the record: the runtime, the reason, and the SHA-256 of both files

Only the standard library is used: `gateway up` and Triton's backend load the same file (docs/adr/0047).
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NETWORK, RECORD = "cpu.onnx", "cpu.json"
"""Names of the files next to model.pt."""
ONNXRUNTIME, TORCHSCRIPT = "onnxruntime", "torchscript"
MAX_RECORD_BYTES = 2**16


@dataclass(frozen=True)
class Choice:
    """The runtime of a network on a CPU."""

    runtime: str
    reason: str
    """Why, as a clause."""
    damaged: bool = False
    """Whether the record or cpu.onnx is damaged, or belongs to another model.pt."""


def choose(model: Path) -> Choice:
    """The runtime for a model.pt on a CPU: ONNX Runtime only if the record's checksums fit both files."""
    path = model.with_name(RECORD)
    if model.suffix != ".pt" or not path.is_file():
        return Choice(TORCHSCRIPT, f"its folder has no {RECORD}")
    try:
        record = read(path)
        if record["runtime"] != ONNXRUNTIME:
            return Choice(TORCHSCRIPT, str(record["reason"]))
        if sha256(model) != record["model_sha256"]:
            return Choice(TORCHSCRIPT, f"{RECORD} belongs to another {model.name}", damaged=True)
        if sha256(model.with_name(NETWORK)) != record["onnx_sha256"]:
            return Choice(TORCHSCRIPT, f"{NETWORK} is not the file that was compared with {model.name}", damaged=True)
        return Choice(ONNXRUNTIME, str(record["reason"]))
    except (OSError, ValueError, KeyError, TypeError) as exc:
        return Choice(TORCHSCRIPT, f"{RECORD} or {NETWORK} cannot be read: {exc!r}", damaged=True)


def read(path: Path) -> dict[str, Any]:
    """The record; raises OSError or ValueError."""
    with path.open("rb") as file:
        content = file.read(MAX_RECORD_BYTES + 1)
    if len(content) > MAX_RECORD_BYTES:
        raise ValueError(f"it has more than {MAX_RECORD_BYTES} bytes")
    record = json.loads(content)
    if not isinstance(record, dict):
        raise ValueError("it is not a JSON object")  # noqa: TRY004  # a file of another content
    return record


def sha256(path: Path) -> str:
    """The checksum of a file, in hexadecimal digits; raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
