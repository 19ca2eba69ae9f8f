"""The arguments of `gateway model add`: a model, its labels, its preprocessing."""

import hashlib
from dataclasses import dataclass, field, replace
from pathlib import Path

from gateway.values.labels import LabelsError, label_text, read_labels
from gateway_models.networks.errors import ModelError
from gateway_models.networks.file_kinds import ONNX, PICKLE, SAFETENSORS, STATE_DICT, UNKNOWN, FileKind, alone, kind_of
from gateway_models.networks.functions import FunctionSource, find_function, is_function
from gateway_models.networks.hub import (
    HUGGING_FACE,
    TIMM,
    Described,
    fetch_folder,
    folder_digest,
    read_folder,
    timm_config,
    timm_preprocessing,
)
from gateway_models.networks.onnx_metadata import described
from gateway_models.repository.entry import LABELS, Entry
from gateway_models.repository.preprocessing import Preprocessing
from gateway_models.repository.preprocessing_sources import from_weights, weights_enum
from gateway_models.repository.spec import ModelSpec

TORCHVISION = "torchvision:"
RECIPE = "recipe:"
"""Prefix of a model that gateway_models.networks.export builds, such as the default one."""


@dataclass(frozen=True, slots=True)
class Source:
    """A model's source, inspected: `spec` has its absolute path, its weights' path, and the SHA-256 of these files.

    `kind` is torchvision, timm, huggingface, recipe, function or the key of the `file`'s kind; `like` names the
    torchvision weights whose preprocessing it was trained with.
    """

    spec: ModelSpec
    kind: str
    like: str = ""
    described: Described = field(default_factory=Described)
    function: FunctionSource | None = None
    file: FileKind | None = None

    @property
    def preprocessing(self) -> Preprocessing | None:
        """The preprocessing in the source, unless the user names another one by --like."""
        return None if self.spec.like else self.described.preprocessing


def find_source(spec: ModelSpec) -> Source:
    """Inspect a spec's source without loading it; raises UserError."""
    text, weights = spec.source, spec.weights
    if weights and not text.startswith((TORCHVISION, TIMM)):
        raise ModelError("--weights only works with torchvision:ARCH and timm:ARCH; other sources contain theirs")
    if is_function(text):
        function = find_function(text, spec.include)
        return Source(
            replace(spec, source=function.location, include=function.include, sha256=function.digest()),
            "function",
            spec.like or "",
            function=function,
        )
    if spec.include:
        raise ModelError("--include is for the files of a Python function, FILE.py:NAME")
    if text.startswith(TORCHVISION):
        return _torchvision(spec)
    if text.startswith(RECIPE):
        return Source(spec, "recipe", spec.like or "")
    if text.startswith(TIMM):
        return _timm(spec)
    if text.startswith(HUGGING_FACE):
        name = text.removeprefix(HUGGING_FACE)
        folder = Path(name).expanduser().absolute()
        if not folder.is_dir():
            folder = fetch_folder(name, zero_shot=spec.zero_shot is not None)
        return _folder(spec, folder)
    path = Path(text).expanduser().absolute()
    if not path.is_file() and not path.is_dir():
        raise ModelError(
            f"there is no file {path}; SOURCE must be a file, a folder of Hugging Face, "
            "torchvision:ARCH, timm:ARCH, huggingface:OWNER/NAME, or FILE.py:NAME"
        )
    kind = kind_of(path)
    if path.is_dir() and (kind is UNKNOWN or kind.opener):
        return _folder(spec, path)
    kind.check(path)
    found = described(path) if kind is ONNX else Described()
    return Source(replace(spec, source=str(path), sha256=digest(path)), kind.key, spec.like or "", found, file=kind)


def file_kind(source: str) -> FileKind:
    """The kind of the file that is a source; UNKNOWN for other sources."""
    path = Path(source)
    return kind_of(path) if path.is_file() else UNKNOWN


def _torchvision(spec: ModelSpec) -> Source:
    from torchvision import models

    architecture = spec.source.removeprefix(TORCHVISION)
    if architecture not in models.list_models(module=models):
        raise ModelError(f"torchvision has no classifier {architecture!r}: torchvision.models.list_models() lists them")
    like = spec.like or str(models.get_model_weights(architecture).DEFAULT)
    weights_enum(like)
    return Source(_with_weights(spec), "torchvision", like)


def _timm(spec: ModelSpec) -> Source:
    architecture = spec.source.removeprefix(TIMM)
    config = timm_config(architecture)
    if not spec.weights:
        name = config.get("hf_hub_id")
        if not name:
            raise ModelError(f"timm has no weights for {architecture}: use --weights FILE")
        return _folder(spec, fetch_folder(name))
    # By default, the weights were trained with the same preprocessing as timm's.
    preprocessing = None if spec.like else timm_preprocessing(config)
    return Source(_with_weights(spec), "timm", spec.like or "", Described(preprocessing=preprocessing))


def _folder(spec: ModelSpec, path: Path) -> Source:
    found = read_folder(path, zero_shot=bool(spec.zero_shot or spec.texts))
    if found.multi_label and not spec.multi_label:
        raise ModelError(
            f"{path} was trained to give an image several labels (problem_type in config.json): add --multi-label"
        )
    if spec.zero_shot:
        spec = replace(spec, texts=read_labels(spec.zero_shot))
    spec = replace(spec, source=f"{HUGGING_FACE}{path}", sha256=folder_digest(path))
    return Source(spec, "huggingface", spec.like or "", replace(found, labels=spec.texts or found.labels))


def _with_weights(spec: ModelSpec) -> ModelSpec:
    """The spec with the absolute path and the checksum of its weights file, if it has one."""
    if not spec.weights:
        return replace(spec, sha256=None)
    path = _weights(spec.weights)
    return replace(spec, weights=str(path), sha256=digest(path))


def _weights(text: str) -> Path:
    """The path of a file with only weights; raises ModelError."""
    path = Path(text).expanduser().absolute()
    if not path.is_file():
        raise ModelError(
            f"there is no file {path}; --weights takes a file; --like takes the name of torchvision weights"
        )
    kind = kind_of(path)
    if kind not in {STATE_DICT, SAFETENSORS}:
        advice = f". If you trust it, {alone(path)}" if kind is PICKLE else ""
        raise ModelError(
            f"{path} is {kind.content}, but --weights takes a state dict, a checkpoint with one, or safetensors{advice}"
        )
    return path


def find_preprocessing(source: Source, given: Preprocessing | None) -> Preprocessing:
    """The model's preprocessing; raises ModelError if neither the user nor the source names it."""
    if given is not None:
        return given
    if source.preprocessing is not None:
        return source.preprocessing
    if source.like:
        return from_weights(source.like)
    raise ModelError(
        "how did training prepare its images? If serving does it differently, answers are silently wrong. Use one of: "
        "--like ResNet50_Weights.IMAGENET1K_V2 (as torchvision's weights of that name), "
        "--resize 256 --crop 224 --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225 (or --pixels in place of --mean "
        "and --std), or --preprocessing FILE"
    )


def find_labels(source: Source, path: Path | None) -> tuple[str, ...]:
    """One label for each class: from a file, from the source, or of torchvision's weights; raises ModelError."""
    if path is not None:
        return read_labels(path)
    if source.described.labels:
        return source.described.labels
    if source.kind != "torchvision":
        raise ModelError("use --labels FILE, with one label per line in the order of the classes in training")
    return tuple(weights_enum(source.like).meta["categories"])


def _label_lines(path: Path) -> tuple[str, ...]:
    """The lines of a labels file of the repository, as Triton reads it; raises LabelsError."""
    # Not splitlines(), which also breaks at characters that Triton keeps in a label.
    labels = tuple(line.strip() for line in label_text(path).split("\n"))
    for number, label in enumerate(labels, 1):
        if not label:
            raise LabelsError(f"{path} has no label on line {number}; every class needs one")
    return labels


def labels_of(entry: Entry, repository: Path, version: int) -> tuple[str, ...]:
    """The labels of a version's classes, after its post-processing if that changes them; raises LabelsError."""
    return _label_lines(entry.labels_file(repository, version))


def network_labels(entry: Entry, repository: Path) -> tuple[str, ...]:
    """The labels of the networks' classes, which all versions share; raises LabelsError."""
    return _label_lines(repository / entry.classifier / LABELS)


def digest(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
