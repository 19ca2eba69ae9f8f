"""A model's entry in a repository: the record of how it was made, beside the files that Triton reads.

flowers/                config.pbtxt, a folder named after the version in use, and origin.json: this module's record
flowers.v1/ flowers.v2/ an ensemble for each version, once there are several
flowers_preprocessor/   config.pbtxt, 1/*.py
flowers_classifier/     config.pbtxt, labels.txt, a folder with the network for each version
"""

import json
import re
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from gateway.errors import UserError
from gateway.ingest.resizing import PILLOW, names_release
from gateway.triton.contract import EXACT, FAST, pinned
from gateway.validation import fault
from gateway_models.repository.preprocessing import Preprocessing

RECORD = "origin.json"
FUNCTION_FILES = ("served_function.py", "function.json", "code/")
"""Files beside a function's model.py: the adapter, its parameters, and the user's code."""
AUTO = "auto"
"""Instead of a layer's name for FEATURES: the input of the last linear layer."""
MAX_BATCH, MAX_INSTANCES, MAX_QUEUE_DELAY_US = 65_536, 64, 10_000_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


class EntryError(UserError):
    """A model's entry is missing, unreadable, or cannot be changed as requested."""


class Precision(StrEnum):
    """The type that the network computes in; its inputs and outputs stay fp32."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"
    INT8 = "int8"
    """An ONNX network that `gateway model tune` quantized with calibration images."""


class Format(StrEnum):
    """The file format of the network, which determines the Triton backend."""

    TORCHSCRIPT = "torchscript"
    ONNX = "onnx"
    EXPORTED = "torch-export"
    """A torch.export program; it needs the project's own PyTorch backend instead of NVIDIA's."""
    FUNCTION = "function"
    """A folder: a model.py for Triton's Python backend, and the user's code."""

    @property
    def filename(self) -> str:
        """The file in a version's folder."""
        return {
            Format.TORCHSCRIPT: "model.pt",
            Format.ONNX: "model.onnx",
            Format.EXPORTED: "model.pt2",
            Format.FUNCTION: "model.py",
        }[self]


class Decode(StrEnum):
    """How the gateway decodes large JPEGs: in full, or scaled down to at least four times the network's input."""

    EXACT = EXACT
    FAST = FAST


class ImageTensor(StrEnum):
    """The tensor between preprocessor and network: normalised images, or pixels that the network normalises."""

    FP32 = "fp32"
    UINT8 = "uint8"


@dataclass(frozen=True, slots=True)
class Serving:
    """How Triton runs a model; `gpus` () leaves the device to Triton.

    `cache` caches the ensemble's answers: a hit skips every step. `cache_classifier` caches the network's answers for
    equal pixels, even from different files.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    max_batch_size: int = 64
    preferred: tuple[int, ...] = (4, 8)
    queue_delay_us: int = 0
    instances: int = 2
    preprocessor_instances: int = 2
    gpus: tuple[int, ...] = ()
    cache: bool = True
    cache_classifier: bool = False
    tensorrt: bool = False
    """Whether NVIDIA's ONNX Runtime backend runs an ONNX model with TensorRT."""
    sequence_model: str = ""
    """The stateful model for this model's streams; "" for the repository's default one, if it exists."""
    decode: Decode = Decode.EXACT

    def __post_init__(self) -> None:
        object.__setattr__(self, "decode", Decode(self.decode))
        for what, value, least, most in (
            ("the largest batch", self.max_batch_size, 1, MAX_BATCH),
            ("instances", self.instances, 1, MAX_INSTANCES),
            ("preprocessor instances", self.preprocessor_instances, 1, MAX_INSTANCES),
            ("the queue delay in µs", self.queue_delay_us, 0, MAX_QUEUE_DELAY_US),
        ):
            if not least <= value <= most:
                raise EntryError(f"{what}: {value} is not between {least:,} and {most:,}")
        wrong = [size for size in self.preferred if not 0 < size <= self.max_batch_size]
        if wrong:
            raise EntryError(f"preferred batch size {wrong[0]} is not between 1 and the largest, {self.max_batch_size}")
        if any(gpu < 0 for gpu in self.gpus):
            raise EntryError("GPUs are numbers from 0, as nvidia-smi lists them")


@dataclass(frozen=True, slots=True)
class Version:
    """One trained network and its origin, so that served answers can be compared with the original's."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    source: str
    """A file's absolute path, torchvision:ARCH, or FILE.py:NAME."""
    sha256: str
    """That of the source, or of the weights if they are a file; "" if there is no file."""
    weights: str
    """A file of weights, the name of torchvision weights, or ""."""
    ending: str
    precision: Precision
    difference: float
    """Largest difference of a probability from the original's on made-up images, when it was written."""
    input: str = ""
    """The original's input format, such as uint8-nhwc; "" is fp32 [N, 3, H, W]."""
    output: str = ""
    """The output with the scores, by name or number, where there are several; else ""."""
    grayscale: bool = False
    """Whether the original takes one channel."""
    include: tuple[str, ...] = ()
    """Files and folders that a function needs."""
    features: str = ""
    """The layer of the original whose output is FEATURES, or AUTO; "" for no embeddings."""
    features_difference: float = 0.0
    """1 minus the smallest cosine of an embedding and the original's on made-up images, when it was written."""
    trusted: bool = False
    """Whether it was added with --trust, so that the original may execute code when it is loaded again."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The data from which the files of an entry are written."""

    name: str
    classes: int
    preprocessing: Preprocessing
    format: Format
    multi_label: bool
    serving: Serving
    versions: dict[int, Version] = field(default_factory=dict)
    in_use: int = 1
    preprocessor: str = ""
    classifier: str = ""
    features: int = 0
    """The size of each embedding (FEATURES); 0 if the model gives none."""
    tensor: ImageTensor = ImageTensor.FP32

    def __post_init__(self) -> None:
        object.__setattr__(self, "preprocessor", self.preprocessor or preprocessor_of(self.name))
        object.__setattr__(self, "classifier", self.classifier or classifier_of(self.name))

    @property
    def precision(self) -> Precision:
        """The precision of the version in use."""
        return self.versions[self.in_use].precision

    @property
    def ensembles(self) -> dict[str, int]:
        """Each ensemble's name and the version that it answers with."""
        several = {pinned(self.name, version): version for version in self.versions} if len(self.versions) > 1 else {}
        return {self.name: self.in_use, **several}

    def ensemble_of(self, version: int) -> str:
        """The ensemble that answers with a version."""
        return self.name if version == self.in_use else pinned(self.name, version)

    @property
    def folders(self) -> tuple[str, ...]:
        """Every folder of the repository that belongs to the model; each is a model to Triton."""
        return (*self.ensembles, self.preprocessor, self.classifier)

    def model_file(self, repository: Path, version: int) -> Path:
        """Where a version's network is."""
        return repository / self.classifier / str(version) / self.format.filename

    def with_serving(self, **changes: Any) -> "Entry":  # noqa: ANN401  # the fields of Serving
        """A copy with other values of Serving."""
        return replace(self, serving=replace(self.serving, **changes))


_RECORD = TypeAdapter(Entry)


def first_fault(error: ValidationError) -> str:
    """The first error in a JSON file and its location."""
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"]))
    return f"{where}: {fault(first)}" if where else fault(first)


def preprocessor_of(name: str) -> str:
    """The folder of a model's preprocessor."""
    return f"{name}_preprocessor"


def classifier_of(name: str) -> str:
    """The folder of a model's network."""
    return f"{name}_classifier"


def check_name(name: str) -> None:
    """Raise EntryError unless a name can be a folder, a part of a URL and a name of Triton's."""
    if not _NAME.fullmatch(name):
        raise EntryError(
            f"{name!r} cannot be a model's name: use up to 64 letters, digits, - and _, a letter or digit first"
        )


def write_record(entry: Entry, repository: Path) -> None:
    """Write the entry's record, origin.json."""
    text = json.dumps(asdict(entry), indent=2)
    (repository / entry.name / RECORD).write_text(text + "\n")


def read_entry(repository: Path, name: str) -> Entry:
    """Read an entry's record; raises EntryError that lists the existing names."""
    path = repository / name / RECORD
    try:
        return _RECORD.validate_python(_current(json.loads(path.read_bytes())))
    except FileNotFoundError as exc:
        names = ", ".join(entry_names(repository)) or "none"
        raise EntryError(
            f"{repository} has no model {name!r} that `gateway model add` wrote; there are: {names}"
        ) from exc
    except ValidationError as exc:
        raise EntryError(f"cannot read {path}: {first_fault(exc)}") from exc
    except (OSError, ValueError, RecursionError) as exc:
        raise EntryError(f"cannot read {path}: {exc}") from exc


def _current(document: Any) -> Any:  # noqa: ANN401  # JSON
    """A record of an earlier release as this one writes it."""
    if isinstance(document, dict) and isinstance(document.get("preprocessing"), dict):
        prepared = document["preprocessing"]
        if names_release(str(prepared.get("resize_library", ""))):
            prepared["resize_library"] = PILLOW
    return document


def entry_names(repository: Path) -> list[str]:
    """The names of a repository's entries that have a record."""
    return sorted(path.parent.name for path in repository.glob(f"*/{RECORD}"))
