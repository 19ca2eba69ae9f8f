"""What `gateway model add` is given: a model, its labels, its preprocessing."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gateway.errors import UserError
from gateway.networks.files import Kind, ModelFileError, kind_of, refuse
from gateway.networks.functions import FunctionSource, find_function, is_function
from gateway.repository.preprocessing import Preprocessing, from_weights, weights_enum

TORCHVISION = "torchvision:"
REPEATED_SHOWN = 3
RECIPE = "recipe:"
"""A model that gateway.networks.export makes, such as the default one."""


class SourceError(UserError):
    """What was said about a model is not enough, or contradicts itself."""


@dataclass(frozen=True, slots=True)
class Source:
    """A model as the user names it; `like` names the torchvision weights that it was trained like.

    `kind` is torchscript, onnx, torchvision, recipe or function.
    `sha256` is of the file, of the weights' file for torchvision, of all files of a function, or "".
    """

    kind: str
    location: str
    weights: str
    like: str
    sha256: str
    function: FunctionSource | None = None


def find_source(text: str, *, weights: str | None, like: str | None, include: Sequence[Path] = ()) -> Source:
    """Look at a SOURCE without loading it; raises UserError."""
    if is_function(text):
        if weights:
            raise SourceError("--weights is for torchvision:ARCH; a function's files are named by --include")
        function = find_function(text, include)
        return Source("function", function.location, "", like or "", function.digest(), function)
    if include:
        raise SourceError("--include is for the files of a Python function, FILE.py:NAME")
    if text.startswith(TORCHVISION):
        return _torchvision(text.removeprefix(TORCHVISION), weights, like)
    if text.startswith(RECIPE):
        return Source("recipe", text, "", like or "", "")
    path = Path(text).expanduser().absolute()
    if path.is_dir():
        raise SourceError(f"{path} is a folder; SOURCE must be a file, such as the model.pt in it, or torchvision:ARCH")
    if not path.is_file():
        raise SourceError(f"there is no file {path}; SOURCE must be a file or torchvision:ARCH")
    if weights:
        raise SourceError("--weights only works with torchvision:ARCH; a model file contains its weights")
    kind = kind_of(path)
    if kind not in {Kind.TORCHSCRIPT, Kind.ONNX}:
        raise refuse(path, kind)
    return Source("onnx" if kind is Kind.ONNX else "torchscript", str(path), "", like or "", digest(path))


def _torchvision(architecture: str, weights: str | None, like: str | None) -> Source:
    import difflib

    from torchvision import models

    known = models.list_models(module=models)
    if architecture not in known:
        near = difflib.get_close_matches(architecture, known, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else "torchvision.models.list_models() lists them"
        raise SourceError(f"torchvision has no classifier {architecture!r}: {hint}")
    if like is None:
        like = str(models.get_model_weights(architecture).DEFAULT)
    weights_enum(like)
    location = f"{TORCHVISION}{architecture}"
    if weights is None:
        return Source("torchvision", location, like, like, "")
    path = Path(weights).expanduser().absolute()
    if not path.is_file():
        raise SourceError(
            f"there is no file {path}; --weights takes a file; --like takes the name of torchvision weights"
        )
    kind = kind_of(path)
    if kind not in {Kind.STATE_DICT, Kind.CHECKPOINT}:
        if kind is Kind.UNKNOWN:
            raise ModelFileError(f"{path} contains no weights; save them with torch.save(model.state_dict(), …)")
        raise ModelFileError(
            f"{path} is {kind.value}, but --weights takes a state dict or a checkpoint that contains one"
        )
    return Source("torchvision", location, str(path), like, digest(path))


def find_preprocessing(source: Source, given: Preprocessing | None) -> Preprocessing:
    """How the model wants its images; raises SourceError where nobody said."""
    if given is not None:
        return given
    if source.like:
        return from_weights(source.like)
    if source.function:
        raise SourceError(
            f"which images does {source.function.name} take? Say --crop 224, or --resize 256 --crop 224 for the middle "
            "of a larger one; where it takes normalised float32, also --mean and --std as in training"
        )
    raise SourceError(
        "how did training prepare its images? If serving does it differently, answers are silently wrong. Use one of: "
        "--like ResNet50_Weights.IMAGENET1K_V2 (as torchvision's weights of that name), "
        "--resize 256 --crop 224 --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225, or --preprocessing FILE"
    )


def find_labels(source: Source, path: Path | None) -> tuple[str, ...]:
    """One label for each class: a line each of a file, or those of torchvision's weights; raises SourceError."""
    if path is not None:
        return read_labels(path)
    if source.kind != "torchvision":
        raise SourceError("use --labels FILE, with one label per line in the order of the classes in training")
    return tuple(weights_enum(source.like).meta["categories"])


def read_labels(path: Path) -> tuple[str, ...]:
    """The lines of a UTF-8 file; raises SourceError where there are none, or one is empty."""
    try:
        # Not splitlines(), which also breaks at what Triton takes for a part of a label. The sig is Windows' mark.
        text = path.read_text(encoding="utf-8-sig").rstrip()
    except (OSError, UnicodeDecodeError) as exc:
        raise SourceError(f"cannot read the labels: {exc}") from exc
    if not text:
        raise SourceError(f"{path} contains no labels")
    labels = tuple(line.strip() for line in text.split("\n"))
    for number, label in enumerate(labels, 1):
        if not label:
            raise SourceError(f"{path} has no label on line {number}; every class needs one")
    return labels


def repeated(labels: Sequence[str]) -> str:
    """The labels that stand more than once, in words with their lines; "" where there are none."""
    lines: dict[str, list[int]] = {}
    for number, label in enumerate(labels, 1):
        lines.setdefault(label, []).append(number)
    twice = [f"{label!r} on lines {', '.join(map(str, found))}" for label, found in lines.items() if len(found) > 1]
    return "; ".join(twice[:REPEATED_SHOWN]) + ("; …" if len(twice) > REPEATED_SHOWN else "")


def digest(path: Path) -> str:
    """The SHA-256 of a file."""
    hasher = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(2**20):
            hasher.update(block)
    return hasher.hexdigest()
