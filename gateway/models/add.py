"""`gateway model add`: from a trained network to a model repository entry."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from gateway.models.entry import (
    Entry,
    EntryError,
    Format,
    Precision,
    Serving,
    Version,
    check_name,
    classifier_of,
    entry_names,
    preprocessor_of,
    read_entry,
    write_record,
)
from gateway.models.gpus import gpu_count
from gateway.models.isolation import TIMEOUT_SECONDS, Job, Say, work
from gateway.models.preprocessing import Preprocessing
from gateway.models.render import render
from gateway.models.sources import SourceError, find_labels, find_preprocessing, find_source
from gateway.triton.contract import PREPROCESSOR
from gateway.triton.runtime import DEFAULT_MODEL_REPOSITORY

LABELS = "labels.txt"
PREPROCESSOR_CODE = DEFAULT_MODEL_REPOSITORY / PREPROCESSOR / "1" / "model.py"


@dataclass(frozen=True, slots=True)
class Request:
    """What to add. `version` None means a new model; a number adds to one that is there, with the same labels.

    `format` None is the source's own. `preprocessing` None means torchvision's of `like`, or of the architecture.
    """

    source: str
    name: str
    labels: Path | None = None
    like: str | None = None
    preprocessing: Preprocessing | None = None
    weights: str | None = None
    precision: Precision = Precision.FP32
    format: Format | None = None
    multi_label: bool = False
    serving: Serving = field(default_factory=Serving)
    version: int | None = None


def add(request: Request, repository: Path, say: Say, *, timeout_seconds: float = TIMEOUT_SECONDS) -> Entry:
    """Write a model's folders into a repository and return its entry; raises UserError before anything is changed."""
    check_name(request.name)
    check_gpus(request.serving)
    old = _entry_to_extend(request, repository)
    if old is None:
        _check_folders_are_free(request.name, repository)
    source = find_source(request.source, weights=request.weights, like=request.like)
    kind = Format.ONNX if source.kind == "onnx" else Format.TORCHSCRIPT
    written_as = request.format or (old.format if old else kind)
    _check_format(kind, written_as, request.precision)
    multi_label = old.multi_label if old else request.multi_label
    # A new version is prepared and named like the others where nothing else is said.
    alike = old is not None and request.like is None
    preprocessing = find_preprocessing(source, request.preprocessing or (old.preprocessing if old and alike else None))
    labels = find_labels(source, request.labels or (repository / old.classifier / LABELS if old else None))
    number = request.version or 1
    with _staging(repository) as staging:
        output = staging / written_as.filename
        outcome = work(
            Job(
                kind=source.kind,
                source=source.location,
                weights=source.weights,
                side=preprocessing.crop_size,
                labels=len(labels),
                multi_label=multi_label,
                precision=request.precision,
                format=written_as,
                output=str(output),
            ),
            say,
            timeout_seconds=timeout_seconds,
        )
        version = Version(
            source.location, source.sha256, source.weights, outcome.ending, request.precision, outcome.difference
        )
        if old:
            _check_same(old, preprocessing, written_as, labels, repository)
            entry = replace(old, versions={**old.versions, number: version})
        else:
            entry = Entry(
                name=request.name,
                classes=outcome.classes,
                preprocessing=preprocessing,
                format=written_as,
                multi_label=multi_label,
                serving=request.serving,
                versions={number: version},
                in_use=number,
            )
        target = entry.model_file(repository, number)
        target.parent.mkdir(parents=True, exist_ok=True)
        output.replace(target)
    _write(entry, repository, labels)
    return entry


def rewrite(entry: Entry, repository: Path) -> None:
    """Write an entry's configurations and record anew, after a change of its settings or its version in use."""
    texts = render(entry)
    for folder, text in texts.items():
        path = repository / folder
        path.mkdir(parents=True, exist_ok=True)
        (path / "config.pbtxt").write_text(text)
    for name, version in entry.ensembles.items():
        # Triton takes an ensemble's version from its folder, which is empty.
        keep = repository / name / str(version)
        keep.mkdir(exist_ok=True)
        for other in (repository / name).iterdir():
            if other.is_dir() and other != keep:
                shutil.rmtree(other)
    write_record(entry, repository)


def check_gpus(serving: Serving) -> None:
    """Raise EntryError where a GPU is asked for that this machine does not have."""
    if not serving.gpus:
        return
    count = gpu_count()
    missing = [gpu for gpu in serving.gpus if gpu >= count]
    if missing:
        has = f"{count} GPU{'s' * (count > 1)}, numbered from 0" if count else "no GPU that its CUDA driver knows of"
        raise EntryError(
            f"--gpus names GPU {missing[0]}, and this machine has {has}: leave --gpus out, and Triton takes every GPU "
            "there is, or the CPU; or run this on the machine that serves"
        )


def _entry_to_extend(request: Request, repository: Path) -> Entry | None:
    exists = request.name in entry_names(repository)
    if request.version is None or not exists:
        if exists:
            raise EntryError(
                f"{repository} has a model {request.name!r} already: say --version N to add a version, or remove it "
                f"first: gateway model remove {request.name}"
            )
        return None
    if request.version < 1:
        raise EntryError("versions are numbers from 1 on")
    old = read_entry(repository, request.name)
    if request.version in old.versions:
        raise EntryError(
            f"{request.name} has a version {request.version} already; the next one is {max(old.versions) + 1}"
        )
    return old


def _check_format(kind: Format, written_as: Format, precision: Precision) -> None:
    if kind is Format.ONNX and written_as is Format.TORCHSCRIPT:
        raise SourceError("an ONNX file cannot become TorchScript: leave --format out, or add the PyTorch model itself")
    if written_as is Format.ONNX and precision is Precision.BF16:
        raise SourceError("ONNX Runtime has no bf16 convolutions: say --precision fp16, or --format torchscript")


def _check_same(
    old: Entry, preprocessing: Preprocessing, written_as: Format, labels: tuple[str, ...], repository: Path
) -> None:
    """The versions of a model share its configuration; what differs in more than weights is another model."""
    advice = f"add it under another name, which clients ask for by ?model=, instead of as a version of {old.name!r}"
    differences = preprocessing.differences(old.preprocessing.parameters())
    if differences:
        raise EntryError(f"it wants its images otherwise ({'; '.join(differences)}): {advice}")
    if written_as is not old.format:
        raise EntryError(f"it is {written_as.value} and the others are {old.format.value}: {advice}")
    given = (repository / old.classifier / LABELS).read_text().splitlines()
    if list(labels) != given:
        raise EntryError(f"its labels are not those of the others: {advice}")


def _check_folders_are_free(name: str, repository: Path) -> None:
    for folder in (name, preprocessor_of(name), classifier_of(name)):
        if (repository / folder).exists():
            raise EntryError(f"{repository / folder} is there already, of another origin: take another --name")


def _write(entry: Entry, repository: Path, labels: tuple[str, ...]) -> None:
    code = repository / entry.preprocessor / "1" / "model.py"
    if not code.exists():
        code.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(PREPROCESSOR_CODE, code)
    (repository / entry.classifier / LABELS).write_text("".join(f"{label}\n" for label in labels), encoding="utf-8")
    rewrite(entry, repository)


@contextmanager
def _staging(repository: Path) -> Iterator[Path]:
    """A folder on the repository's file system that is gone afterwards."""
    try:
        repository.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".adding-", dir=repository) as folder:
            yield Path(folder)
    except OSError as exc:
        raise EntryError(f"cannot write into {repository}: {exc}") from exc
