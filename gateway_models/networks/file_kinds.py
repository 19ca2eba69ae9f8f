"""Detects the format of a model file without loading it; nothing in the file is executed."""

import bz2
import itertools
import lzma
import pickletools
import zipfile
import zlib
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO, Protocol

from gateway.errors import UserError
from gateway_models.networks.frameworks import Framework, with_bytes, with_members, with_modules

HEAD_BYTES = 64
ENGINE_MAGIC = (b"ftrt", b"ptrt")
"""First bytes of a serialized TensorRT engine."""
MAX_OPCODES = 200_000
"""Opcodes of one pickle that are inspected; the first thousands identify it."""
MAX_PICKLE_BYTES = 16 * 2**20
"""Bytes of one pickle that are read: a zip of one megabyte may inflate to gigabytes."""
# The modules that torch.save references for tensors, in a state dict as in a module.
_TENSOR_GLOBALS = ("torch._utils", "torch.storage", "collections", "torch.serialization", "torch", "numpy", "_codecs")
_CHECKPOINT_KEYS = {
    "state_dict",
    "state_dict_ema",
    "model_state_dict",
    "optimizer",
    "optimizer_state_dict",
    "epoch",
    "global_step",
}


class _Decompressor(Protocol):
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


# joblib compresses pickles; 47 makes zlib take its own header and gzip's.
_COMPRESSIONS: dict[bytes, Callable[[], _Decompressor]] = {
    b"\x1f\x8b": lambda: zlib.decompressobj(47),
    b"\x78": lambda: zlib.decompressobj(47),
    b"BZh": bz2.BZ2Decompressor,
    b"\xfd7zXZ": lzma.LZMADecompressor,
    b"\x5d\0\0": lzma.LZMADecompressor,
}


class ModelFileError(UserError):
    """A file contains no model that can be served; the message names its content and what to do instead."""


class FileKind(StrEnum):
    """The content of a file."""

    TORCHSCRIPT = "TorchScript"
    ONNX = "ONNX"
    STATE_DICT = "a state dict"
    CHECKPOINT = "a training checkpoint"
    PICKLED_MODULE = "a pickled module"
    EXPORTED_PROGRAM = "a torch.export program"
    AOTI_PACKAGE = "a package of AOTInductor"
    SAFETENSORS = "safetensors weights"
    PICKLE = "a pickle"
    ENGINE = "a TensorRT engine"
    UNKNOWN = "no model"


ADVICE = {
    FileKind.STATE_DICT: "it has weights but no network. Name the architecture: `gateway model add torchvision:ARCH "
    "--weights {path}` or timm:ARCH, or build the network in Python, load the weights into it and save it by {export}",
    FileKind.CHECKPOINT: "it has weights but no network. Name the architecture: "
    "`gateway model add torchvision:ARCH --weights {path}` or timm:ARCH, or build the network in Python, load the "
    "weights into it and save it by {export}",
    FileKind.PICKLED_MODULE: "loading it would run code from the file, so it is not loaded here. If you trust it and "
    "can import its classes, load it in Python and save it with {export}",
    FileKind.AOTI_PACKAGE: "it is machine code for one type of processor or GPU, without the original network that "
    "its answers could be compared with. Add the program that it was compiled from: {export}",
    FileKind.ENGINE: "it is machine code for one kind of GPU, which cannot be tested here. Add the network that it was "
    "built from, with --format onnx --tensorrt; or write its config.pbtxt by hand: docs/guides/existing-triton.md",
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
"""What a message advises: without deprecated calls, and with nothing but torch. Tests run it."""
UNTRUSTED_PROGRAM = (
    "torch.export.load can execute code that a file contains. If the file is yours, or its author may run code here, "
    "with your rights, add --trust; or add the network as ONNX"
)


Content = FileKind | Framework
"""What a file is: of torch, ONNX or TensorRT, or of another framework."""


def kind_of(path: Path) -> Content:
    """Detect a file's kind from its content; raises ModelFileError if it cannot be read."""
    try:
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
            file.seek(0)
            if zipfile.is_zipfile(file):
                return _kind_of_zip(path)
            file.seek(0)
            if head[:1] == b"\x80" and head[1:2] <= b"\x05":
                return _kind_of_legacy(file)
            for first, decompressor in _COMPRESSIONS.items():
                if head.startswith(first):
                    return _kind_of_compressed(file, decompressor())
        if framework := with_bytes(path, head):
            return framework
    except (OSError, zipfile.BadZipFile) as exc:
        raise ModelFileError(f"cannot read {path}: {exc}") from exc
    # Ultralytics writes a header of JSON before an engine.
    if head[:4] in ENGINE_MAGIC or head[3:6] == b'\0{"':
        return FileKind.ENGINE
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


def refuse(path: Path, kind: Content) -> ModelFileError:
    """The error for a file that is not a servable model."""
    if isinstance(kind, Framework):
        return ModelFileError(f"{path} is {kind.content}: {kind.by_hand(path)}")
    advice = ADVICE[kind].replace("{path}", str(path)).replace("{export}", EXPORT)
    return ModelFileError(f"{path} is {kind.value}: {advice}")


def alone(path: Path, kind: Content) -> str:
    """Advice on how to save only the weights of a trusted file."""
    loaded = f"torch.load({str(path)!r}, map_location='cpu', weights_only=False)"
    if kind is FileKind.PICKLED_MODULE:
        return f"save only its weights, in Python, and use that file: torch.save({loaded}.state_dict(), 'weights.pt')"
    return (
        "save only its weights, in Python, by their key in the file, and use that file: "
        f"torch.save({loaded}['state_dict'], 'weights.pt')"
    )


def _kind_of_zip(path: Path) -> Content:
    with zipfile.ZipFile(path) as archive:
        if framework := with_members(archive.namelist()):
            return framework
        names = {name.partition("/")[2]: name for name in archive.namelist()}
        if "constants.pkl" in names and any(name.startswith("code/") for name in names):
            return FileKind.TORCHSCRIPT
        if any(name.endswith("serialized_exported_program.json") or name.startswith("models/") for name in names):
            return FileKind.EXPORTED_PROGRAM
        if any(name.startswith("data/aotinductor/") for name in names):
            return FileKind.AOTI_PACKAGE
        if "data.pkl" not in names:
            return FileKind.UNKNOWN
        with archive.open(names["data.pkl"]) as pickle:
            return _kind_of_pickle(pickle.read(MAX_PICKLE_BYTES))


def _kind_of_compressed(file: BinaryIO, decompressor: _Decompressor) -> Content:
    try:
        data = decompressor.decompress(file.read(MAX_PICKLE_BYTES), MAX_PICKLE_BYTES)
    except (OSError, ValueError, zlib.error, lzma.LZMAError):
        return FileKind.UNKNOWN
    return _kind_of_pickle(data) if data[:1] == b"\x80" else FileKind.UNKNOWN


def _kind_of_legacy(file: BinaryIO) -> Content:
    """A pickle, or a file of torch.save before 1.6: several pickles in a row; the fourth is the object."""
    if framework := with_modules(_names(file.read(MAX_PICKLE_BYTES))[0]):
        return framework
    file.seek(0)
    try:
        for _ in range(3):
            for _opcode in itertools.islice(pickletools.genops(file), MAX_OPCODES):
                pass
    except (ValueError, EOFError):
        file.seek(0)
    return _kind_of_pickle(file.read(MAX_PICKLE_BYTES))


def _names(data: bytes) -> tuple[set[str], set[str]]:
    """The modules that a pickle names, and its texts."""
    modules, strings = set(), set()
    for name, argument in _opcodes(data):
        if name == "GLOBAL":
            modules.add(str(argument).replace(" ", "."))
        elif isinstance(argument, str):
            strings.add(argument)
            if name == "STACK_GLOBAL":
                modules.add(argument)
    return modules, strings


def _kind_of_pickle(data: bytes) -> Content:
    modules, strings = _names(data)
    if framework := with_modules(modules):
        return framework
    foreign = [
        module for module in modules if not module.startswith(_TENSOR_GLOBALS) or module.startswith("torch.nn.modules")
    ]
    if any(module.startswith("torch.nn.modules") for module in foreign):
        return FileKind.PICKLED_MODULE
    if not any(module.startswith(("torch._utils", "torch.storage")) for module in modules):
        return FileKind.PICKLE
    if _CHECKPOINT_KEYS & strings:
        # It may also have other objects of the training: loading only the weights refuses those that could run code.
        return FileKind.CHECKPOINT
    return FileKind.PICKLED_MODULE if foreign else FileKind.STATE_DICT


def _opcodes(data: bytes) -> Iterator[tuple[str, object]]:
    """Each opcode's name and argument; of STACK_GLOBAL, whose arguments are on the stack, MODULE.NAME."""
    recent: list[str] = []
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
            if count > MAX_OPCODES:
                return
            if opcode.name == "STACK_GLOBAL" and len(recent) >= 2:
                yield opcode.name, ".".join(recent[-2:])
                continue
            if isinstance(argument, str) and opcode.name != "GLOBAL":
                recent = [*recent[-1:], argument]
            yield opcode.name, argument
    except (ValueError, EOFError, IndexError):
        return  # a damaged pickle is judged by its readable part
