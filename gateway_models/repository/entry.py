"""A model's entry in a repository: the record of how it was made, next to the files that Triton reads.

flowers/                config.pbtxt, a folder named after the version in use, and origin.json: this module's record
flowers.v1/ flowers.v2/ an ensemble for each version, once there are several
flowers_preprocessor/   config.pbtxt, 1/*.py
flowers_classifier/     config.pbtxt, labels.txt, a folder with the network for each version
flowers.v2_after/       the post-processing step of version 2, if it has one: config.pbtxt, labels.txt, 1/*.py
"""

import json
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from gateway.errors import UserError
from gateway.triton.contract import pinned
from gateway.triton.footprint import MemoryRecord
from gateway.values.files import whole_file
from gateway.values.rollout import Rollout
from gateway.values.safe_path import UnsafePath, safe_name
from gateway.values.validation import first_fault
from gateway_local.cpu_network import CpuRuntime
from gateway_models.repository.after import own_labels
from gateway_models.repository.spec import PLAIN, Format, ImageTensor, ModelSpec

RECORD = "origin.json"
LABELS = "labels.txt"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


class EntryError(UserError):
    """A model's entry is missing, unreadable, or cannot be changed as requested."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of testing and writing a network.

    `difference` is the largest difference of a probability from the original's on made-up images.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    classes: int
    ending: str
    difference: float
    format: Format
    """The format written; it differs from the requested one if that would give other answers."""
    input: str = PLAIN
    """The original's input format, one of spec.INPUTS."""
    embedding_size: int = 0
    """0 where the network gives no embeddings."""
    embedding_difference: float = 0.0
    """1 minus the smallest cosine of an embedding and the original's."""
    cpu_runtime: CpuRuntime | None = None
    """The runtime of the TorchScript on a CPU; None for other formats."""
    memory: MemoryRecord | None = None
    """Memory of one of its processes on a CPU; None if it was not measured."""


@dataclass(frozen=True, slots=True)
class Version:
    """One trained network: how it was added, so that served answers can be compared with the original's."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    spec: ModelSpec
    outcome: Outcome
    drift_reference: str = ""
    """The distribution of its answers, from `gateway model drift --store`; "" if there is none."""
    network: int = 0
    """The version whose network it runs, with another post-processing step; 0 for its own network."""

    @property
    def classes(self) -> int:
        """The number of classes in answers: of the post-processing step, else of the network."""
        return len(own_labels(self.spec.after)) or self.outcome.classes


@dataclass(frozen=True, slots=True)
class Entry:
    """The data from which the files of an entry are written.

    Versions share a preprocessor and a configuration: what describes these is equal in the specs of all versions.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str
    versions: dict[int, Version]
    rollout: Rollout = field(default_factory=lambda: Rollout({"1": 100}))
    """Which versions answer."""
    preprocessor: str = ""
    classifier: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "preprocessor", self.preprocessor or preprocessor_of(self.name))
        object.__setattr__(self, "classifier", self.classifier or classifier_of(self.name))

    @property
    def in_use(self) -> int:
        """The version that answers, or the one with the largest share; Triton's other clients get it."""
        return int(self.rollout.version)

    @property
    def spec(self) -> ModelSpec:
        """The spec of the version in use."""
        return self.versions[self.in_use].spec

    @property
    def format(self) -> Format:
        """The format of all versions."""
        return self.versions[self.in_use].outcome.format

    @property
    def tensor(self) -> ImageTensor:
        """The tensor between preprocessor and network."""
        return self.spec.tensor or ImageTensor.FP32

    @property
    def embedding_size(self) -> int:
        """The size of each embedding (FEATURES); 0 if the model gives none."""
        return self.versions[self.in_use].outcome.embedding_size

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
        return (*self.ensembles, *self.steps_after, self.preprocessor, self.classifier)

    @property
    def steps_after(self) -> tuple[str, ...]:
        """The folders of the post-processing steps."""
        return tuple(step for version in self.versions if (step := self.step_after(version)))

    def step_after(self, version: int) -> str:
        """The folder of a version's post-processing step; "" if it has none."""
        return f"{pinned(self.name, version)}_after" if self.versions[version].spec.after else ""

    def network_of(self, version: int) -> int:
        """The version of the classifier that a version runs."""
        return self.versions[version].network or version

    def model_file(self, repository: Path, version: int) -> Path:
        """Where a version's network is."""
        return repository / self.classifier / str(self.network_of(version)) / self.format.filename

    def labels_file(self, repository: Path, version: int) -> Path:
        """Where the labels of a version's classes are, one per line."""
        has_own = own_labels(self.versions[version].spec.after)
        return repository / (self.step_after(version) if has_own else self.classifier) / LABELS

    def changed(self, **changes: Any) -> "Entry":  # noqa: ANN401  # the fields of ModelSpec
        """A copy with other values in the specs of all versions."""
        versions = {
            number: replace(version, spec=replace(version.spec, **changes)) for number, version in self.versions.items()
        }
        return replace(self, versions=versions)


_RECORD = TypeAdapter(Entry)


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
    with whole_file(repository / entry.name / RECORD) as draft:
        draft.write_bytes(_RECORD.dump_json(entry, indent=2) + b"\n")


def read_entry(repository: Path, name: str) -> Entry:
    """Read an entry's record; raises EntryError that lists the existing names.

    The record may come from a bucket or an archive, and commands write and delete the folders that it names.
    """
    path = repository / name / RECORD
    try:
        entry = _RECORD.validate_python(json.loads(path.read_bytes()))
        if entry.name != name:
            raise EntryError(f"{path} is the record of {entry.name!r}: a model's record is in its own folder")
        check_versions(entry, *map(int, entry.rollout.versions))
        for folder in entry.folders:
            safe_name(folder)
    except FileNotFoundError as exc:
        names = ", ".join(entry_names(repository)) or "none"
        raise EntryError(
            f"{repository} has no model {name!r} that `gateway model add` wrote; there are: {names}"
        ) from exc
    except ValidationError as exc:
        raise EntryError(f"cannot read {path}: {first_fault(exc)}") from exc
    except UnsafePath as exc:
        raise EntryError(f"{path} names a folder outside of {repository}: {exc}") from exc
    except (OSError, ValueError, RecursionError) as exc:
        raise EntryError(f"cannot read {path}: {exc}") from exc
    return entry


def check_versions(entry: Entry, *versions: int) -> None:
    """Raise EntryError unless a model has these versions."""
    for version in versions:
        if version not in entry.versions:
            numbers = ", ".join(map(str, sorted(entry.versions)))
            there = f"{'are' if len(entry.versions) > 1 else 'is'} {numbers}"
            raise EntryError(f"{entry.name} has no version {version}; there {there}; `gateway model add` adds one")


def entry_names(repository: Path) -> list[str]:
    """The names of a repository's entries that have a record."""
    return sorted(path.parent.name for path in repository.glob(f"*/{RECORD}"))
