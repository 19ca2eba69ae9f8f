"""The kinds of model files: one table of how each is recognised, what converts it, or what to do instead.

To add one of another library: its row here, a function in `converters`, and a row in docs/guides/model-sources.md.
Nothing here imports a library or executes anything in a file.
"""

import contextlib
import importlib.util
import itertools
import pickletools
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from gateway.values.extras import install
from gateway_models.networks.errors import ModelError

HEAD_BYTES = 64
MAX_OPCODES = 200_000
"""Opcodes of one pickle that are inspected; the first thousands identify it."""
MAX_PICKLE_BYTES = 16 * 2**20
"""Bytes of one pickle that are read: a zip of one megabyte may inflate to gigabytes."""
EXPORT = (
    "torch.export.save(torch.export.export(model.eval(), (torch.rand(2, 3, 224, 224),), "
    "dynamic_shapes=({0: torch.export.Dim.DYNAMIC},)), 'model.pt2')"
)
"""The advice of a message: without deprecated calls, and with torch alone. Tests run it."""


@dataclass(frozen=True, slots=True)
class FileKind:
    """A kind of file or folder; `key` is the kind of its source, and `content` names it in messages.

    A zip or folder of another library has the files `members`, a file begins with one of `first`, and a pickle names
    one of `modules`, modules or names in them.
    A network is served as it is, unless `opener`, a function of `converters` that imports the modules in `needs`,
    converts it. `instead` is what to do with a file {path} that is not served here. `runs_code` means that loading such
    a file needs --trust, and `has_labels` that it may have labels.
    """

    key: str
    content: str
    instead: str = ""
    members: frozenset[str] = frozenset()
    first: tuple[bytes, ...] = ()
    modules: tuple[str, ...] = ()
    is_network: bool = False
    opener: str = ""
    needs: tuple[str, ...] = ()
    runs_code: bool = False
    has_labels: bool = False

    def missing(self) -> tuple[str, ...]:
        """The modules in `needs` that are not installed."""
        return tuple(name for name in self.needs if importlib.util.find_spec(name) is None)

    def advice(self, path: Path) -> str:
        """What to do with a file instead of adding it."""
        return self.instead.replace("{path}", str(path)).replace("{stem}", path.stem)

    def check(self, path: Path) -> None:
        """Raise ModelError where a file of this kind is not served and cannot be converted here."""
        if not self.opener and not self.is_network:
            raise ModelError(f"{path} is {self.content}: {self.advice(path)}")
        if missing := self.missing():
            raise ModelError(
                f"{path} is {self.content}, and {' and '.join(missing)} must be installed to convert it: "
                f"{install('converters')}. Or {self.advice(path)}"
            )

    def untrusted(self, path: Path) -> ModelError:
        """The error for a file whose code the user has not allowed to run."""
        return ModelError(
            f"{path} is {self.content}: loading it can run any code. If its author may run code here, with your "
            f"rights, add --trust. Or {self.advice(path)}"
        )


TORCHSCRIPT = FileKind("torchscript", "TorchScript", is_network=True)
ONNX = FileKind("onnx", "ONNX", is_network=True)
PROGRAM = FileKind("exported", "a torch.export program", "add the network as ONNX", is_network=True, runs_code=True)
STATE_DICT = FileKind(
    "state-dict",
    "weights, such as a state dict or a checkpoint",
    "it has weights but no network. Name the architecture: `gateway model add torchvision:ARCH --weights {path}` or "
    f"timm:ARCH, or build the network in Python, load the weights into it and save it by {EXPORT}",
)
SAFETENSORS = FileKind(
    "safetensors",
    "safetensors weights",
    "it has weights but no network. Name the architecture: `gateway model add torchvision:ARCH --weights {path}`, "
    "timm:ARCH for one of timm, or the folder with its config.json for one of Hugging Face",
)
PICKLE = FileKind(
    "pickle",
    "a pickle",
    "unpickling can run any code, so it is not loaded here. If you trust it, load it in Python and save the network "
    f"with {EXPORT}",
)
UNKNOWN = FileKind(
    "unknown",
    "no model",
    "use a program of torch.export (model.pt2), TorchScript (model.pt), ONNX (model.onnx), a folder of Hugging Face, "
    "torchvision:ARCH or timm:ARCH, or a model of another framework: docs/guides/model-sources.md lists them",
)
_KERAS = "convert it to ONNX where it was trained: docs/guides/model-sources.md has the commands"
_SKLEARN = "serve it as it is, by a Python function that loads {path}: docs/guides/model-sources.md has one"
OF_LIBRARIES = (
    FileKind(
        key="yolo",
        content="a pickle of Ultralytics",
        modules=("ultralytics",),
        instead="it is not loaded here. Where Ultralytics is installed, run `yolo export model={path} format=onnx`; "
        "then `gateway model add {stem}.onnx`, which also has the labels and the image size of a classifier",
    ),
    FileKind(
        key="keras",
        content="a Keras model",
        members=frozenset({"metadata.json", "config.json", "model.weights.h5"}),
        first=(b"\x89HDF\r\n\x1a\n",),
        opener="keras_model",
        needs=("keras",),
        instead=_KERAS,
    ),
    FileKind(
        key="saved-model",
        content="a SavedModel of TensorFlow",
        members=frozenset({"saved_model.pb"}),
        instead="where TensorFlow is installed, run: python -m tf2onnx.convert --saved-model {path} --output "
        "{stem}.onnx; then `gateway model add {stem}.onnx`",
    ),
    FileKind(
        key="sklearn",
        content="a pickle of scikit-learn",
        modules=("sklearn",),
        opener="sklearn_pickle",
        needs=("sklearn", "skl2onnx"),
        instead=_SKLEARN,
        runs_code=True,
        has_labels=True,
    ),
    FileKind(
        key="skops",
        content="a model of skops",
        members=frozenset({"schema.json"}),
        opener="skops_pipeline",
        needs=("sklearn", "skl2onnx", "skops"),
        instead=_SKLEARN,
        has_labels=True,
    ),
)


def library_kind(key: str) -> FileKind | None:
    """The kind of file of another library with this key; None for other kinds."""
    return next((kind for kind in OF_LIBRARIES if kind.key == key), None)


def kind_of(path: Path) -> FileKind:
    """Detect the kind of a file or folder from its content; raises ModelError if it cannot be read."""
    try:
        if path.is_dir():
            return _recognised(members=(each.name for each in path.iterdir())) or UNKNOWN
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
            file.seek(0)
            if zipfile.is_zipfile(file):
                return _kind_of_zip(path)
            file.seek(0)
            if head[:1] == b"\x80" and head[1:2] <= b"\x05":
                return _kind_of_legacy(file)
        if kind := _recognised(head=head):
            return kind
    except (OSError, zipfile.BadZipFile) as exc:
        raise ModelError(f"cannot read {path}: {exc}") from exc
    if head[8:10] == b'{"':
        return SAFETENSORS
    # ModelProto starts with ir_version, field 1, a small varint, and then opset_import or producer_name.
    if (
        head[:1] == b"\x08"
        and len(head) > 2
        and head[1] < 32
        and head[2:3] in {b"\x12", b"\x1a", b"\x22", b"\x3a", b"\x42"}
    ):
        return ONNX
    return UNKNOWN


def alone(path: Path) -> str:
    """Advice on how to save only the weights of a trusted file."""
    return (
        "save only its weights, in Python, and use that file: "
        f"model = torch.load({str(path)!r}, map_location='cpu', weights_only=False); "
        "torch.save(getattr(model, 'state_dict', lambda: model['state_dict'])(), 'weights.pt')"
    )


def _kind_of_zip(path: Path) -> FileKind:
    with zipfile.ZipFile(path) as archive:
        if kind := _recognised(members=archive.namelist()):
            return kind
        names = {name.partition("/")[2]: name for name in archive.namelist()}
        if "constants.pkl" in names and any(name.startswith("code/") for name in names):
            return TORCHSCRIPT
        if any(name.endswith("serialized_exported_program.json") or name.startswith("models/") for name in names):
            return PROGRAM
        if "data.pkl" not in names:
            return UNKNOWN
        with archive.open(names["data.pkl"]) as pickle:
            return _kind_of_pickle(pickle.read(MAX_PICKLE_BYTES))


def _kind_of_legacy(file: BinaryIO) -> FileKind:
    """A pickle, or a file of torch.save before 1.6: several pickles in a row; the fourth is the object."""
    if kind := _recognised(modules=_names(file.read(MAX_PICKLE_BYTES))):
        return kind
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


def _kind_of_pickle(data: bytes) -> FileKind:
    modules = _names(data)
    if kind := _recognised(modules=modules):
        return kind
    if any(module.startswith("torch.nn.modules") for module in modules):
        return PICKLE
    if any(module.startswith(("torch._utils", "torch.storage")) for module in modules):
        # A checkpoint may also have other objects of the training; loading only the weights refuses code.
        return STATE_DICT
    return PICKLE


def _recognised(*, members: Iterable[str] = (), modules: Iterable[str] = (), head: bytes = b"") -> FileKind | None:
    """A kind of another library, by the files in a zip or folder, the modules in a pickle, or a file's first bytes."""
    there, named = set(members), [f"{name}." for name in modules]

    def fits(kind: FileKind) -> bool:
        return (
            (bool(kind.members) and kind.members <= there)
            or head.startswith(kind.first)
            or any(name.startswith(f"{module}.") for module in kind.modules for name in named)
        )

    return next(filter(fits, OF_LIBRARIES), None)
