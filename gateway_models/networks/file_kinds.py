"""Detects the format of a model file without loading it; nothing in the file is executed."""

import contextlib
import itertools
import pickletools
import zipfile
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO

from gateway_models.networks.errors import ModelError
from gateway_models.networks.frameworks import Framework, recognised

HEAD_BYTES = 64
MAX_OPCODES = 200_000
"""Opcodes of one pickle that are inspected; the first thousands identify it."""
MAX_PICKLE_BYTES = 16 * 2**20
"""Bytes of one pickle that are read: a zip of one megabyte may inflate to gigabytes."""


class FileKind(StrEnum):
    """The content of a file."""

    TORCHSCRIPT = "TorchScript"
    ONNX = "ONNX"
    STATE_DICT = "weights, such as a state dict or a checkpoint"
    EXPORTED_PROGRAM = "a torch.export program"
    SAFETENSORS = "safetensors weights"
    PICKLE = "a pickle"
    UNKNOWN = "no model"


WEIGHTS_ALONE = (
    "it has weights but no network. Name the architecture: `gateway model add torchvision:ARCH --weights {path}` or "
    "timm:ARCH, or build the network in Python, load the weights into it and save it by {export}"
)
ADVICE = {
    FileKind.STATE_DICT: WEIGHTS_ALONE,
    FileKind.SAFETENSORS: "it has weights but no network. Name the architecture: `gateway model add torchvision:ARCH "
    "--weights {path}`, timm:ARCH for one of timm, or the folder with its config.json for one of Hugging Face",
    FileKind.PICKLE: "unpickling can run any code, so it is not loaded here. If you trust it, load it in Python and "
    "save the network with {export}",
    FileKind.UNKNOWN: "use a program of torch.export (model.pt2), TorchScript (model.pt), ONNX (model.onnx), a folder "
    "of Hugging Face, torchvision:ARCH or timm:ARCH, or a model of another framework: docs/guides/model-sources.md "
    "lists them",
}
EXPORT = (
    "torch.export.save(torch.export.export(model.eval(), (torch.rand(2, 3, 224, 224),), "
    "dynamic_shapes=({0: torch.export.Dim.DYNAMIC},)), 'model.pt2')"
)
"""The advice of a message: without deprecated calls, and with torch alone. Tests run it."""
UNTRUSTED_PROGRAM = (
    "torch.export.load can execute code that a file contains. If the file is yours, or its author may run code here, "
    "with your rights, add --trust; or add the network as ONNX"
)


Content = FileKind | Framework
"""The kind of a file: of torch, ONNX or TensorRT, or of another framework."""


def kind_of(path: Path) -> Content:
    """Detect a file's kind from its content; raises ModelError if it cannot be read."""
    try:
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
            file.seek(0)
            if zipfile.is_zipfile(file):
                return _kind_of_zip(path)
            file.seek(0)
            if head[:1] == b"\x80" and head[1:2] <= b"\x05":
                return _kind_of_legacy(file)
        if framework := recognised(head=head):
            return framework
    except (OSError, zipfile.BadZipFile) as exc:
        raise ModelError(f"cannot read {path}: {exc}") from exc
    if head[8:10] == b'{"':
        return FileKind.SAFETENSORS
    # ModelProto starts with ir_version, field 1, a small varint, and then opset_import or producer_name.
    if (
        head[:1] == b"\x08"
        and len(head) > 2
        and head[1] < 32
        and head[2:3] in {b"\x12", b"\x1a", b"\x22", b"\x3a", b"\x42"}
    ):
        return FileKind.ONNX
    return FileKind.UNKNOWN


def refuse(path: Path, kind: Content) -> ModelError:
    """The error for a file that is not a servable model."""
    if isinstance(kind, Framework):
        return ModelError(f"{path} is {kind.content}: {kind.by_hand(path)}")
    advice = ADVICE[kind].replace("{path}", str(path)).replace("{export}", EXPORT)
    return ModelError(f"{path} is {kind.value}: {advice}")


def alone(path: Path) -> str:
    """Advice on how to save only the weights of a trusted file."""
    return (
        "save only its weights, in Python, and use that file: "
        f"model = torch.load({str(path)!r}, map_location='cpu', weights_only=False); "
        "torch.save(getattr(model, 'state_dict', lambda: model['state_dict'])(), 'weights.pt')"
    )


def _kind_of_zip(path: Path) -> Content:
    with zipfile.ZipFile(path) as archive:
        if framework := recognised(members=archive.namelist()):
            return framework
        names = {name.partition("/")[2]: name for name in archive.namelist()}
        if "constants.pkl" in names and any(name.startswith("code/") for name in names):
            return FileKind.TORCHSCRIPT
        if any(name.endswith("serialized_exported_program.json") or name.startswith("models/") for name in names):
            return FileKind.EXPORTED_PROGRAM
        if "data.pkl" not in names:
            return FileKind.UNKNOWN
        with archive.open(names["data.pkl"]) as pickle:
            return _kind_of_pickle(pickle.read(MAX_PICKLE_BYTES))


def _kind_of_legacy(file: BinaryIO) -> Content:
    """A pickle, or a file of torch.save before 1.6: several pickles in a row; the fourth is the object."""
    if framework := recognised(modules=_names(file.read(MAX_PICKLE_BYTES))):
        return framework
    file.seek(0)
    try:
        for _ in range(3):
            for _opcode in itertools.islice(pickletools.genops(file), MAX_OPCODES):
                pass
    except (ValueError, EOFError):
        file.seek(0)
    return _kind_of_pickle(file.read(MAX_PICKLE_BYTES))


def _names(data: bytes) -> set[str]:
    """The modules that a pickle names, as module.name; of a damaged one, the modules of its readable part."""
    found: set[str] = set()
    recent: list[str] = []
    with contextlib.suppress(ValueError, EOFError, IndexError):
        for opcode, argument, _ in itertools.islice(pickletools.genops(data), MAX_OPCODES):
            if opcode.name == "GLOBAL":
                found.add(str(argument).replace(" ", "."))
            elif opcode.name == "STACK_GLOBAL":
                found.add(".".join(recent))
            elif isinstance(argument, str):
                recent = [*recent[-1:], argument]
    return found


def _kind_of_pickle(data: bytes) -> Content:
    modules = _names(data)
    if framework := recognised(modules=modules):
        return framework
    if any(module.startswith("torch.nn.modules") for module in modules):
        return FileKind.PICKLE
    if any(module.startswith(("torch._utils", "torch.storage")) for module in modules):
        # A checkpoint may also have other objects of the training; loading only the weights refuses code.
        return FileKind.STATE_DICT
    return FileKind.PICKLE
