"""Writes an entry's files: all or none, and drafts outside the repository, where Triton cannot find them."""

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from gateway.triton.contract import PREPROCESSOR
from gateway.values.files import locked, whole_file
from gateway_local import cpu_network
from gateway_local.memory_plan import size_models
from gateway_local.paths import SHIPPED_MODELS
from gateway_models.repository.after import own_labels
from gateway_models.repository.entry import LABELS, RECORD, Entry, EntryError, read_entry, write_record
from gateway_models.repository.render import render
from gateway_models.repository.spec import Format

STEP_VERSION = "1"
PREPROCESSOR_CODE = SHIPPED_MODELS / PREPROCESSOR / "1"


@contextmanager
def staging(repository: Path) -> Iterator[Path]:
    """A temporary folder, on the repository's file system if possible; raises EntryError."""
    try:
        repository.mkdir(parents=True, exist_ok=True)
        # Not inside: Triton treats every folder as a model, even a hidden one, and does not start if it lacks a config.
        beside = repository.resolve().parent
        near = os.access(beside, os.W_OK) and beside.stat().st_dev == repository.stat().st_dev
        with tempfile.TemporaryDirectory(prefix=".adding-", dir=beside if near else None) as folder:
            yield Path(folder)
    except OSError as exc:
        raise EntryError(f"cannot write into {repository}: {_reason(exc)}") from exc


def write(entry: Entry, labels: Sequence[str], network: Path, repository: Path) -> None:
    """Write a new entry and move the network of its only version into it; raises OSError."""
    # Not in the network's folder, which is moved as a whole for a function.
    draft = network.parent.parent / "models"
    write_configs(entry, draft)
    code = draft / entry.preprocessor / "1"
    code.mkdir()
    for path in preprocessor_files():
        shutil.copyfile(path, code / path.name)
    write_labels(draft / entry.classifier / LABELS, labels)
    _move(network, entry.model_file(draft, entry.in_use), entry.format)
    moved: list[Path] = []
    try:
        # The ensemble last, so that Triton never sees an ensemble without its steps.
        for folder in reversed(entry.folders):
            target = repository / folder
            check_free(target)
            moved.append(target)
            shutil.move(draft / folder, target)
    except BaseException:
        for path in moved:
            shutil.rmtree(path, ignore_errors=True)
        raise
    size_models(repository)


def preprocessor_files() -> list[Path]:
    """The code of the shipped preprocessor, which is copied into every entry."""
    return sorted(PREPROCESSOR_CODE.glob("*.py"))


def write_labels(path: Path, labels: Sequence[str]) -> None:
    """Write one label per line."""
    path.write_text("".join(f"{label}\n" for label in labels), encoding="utf-8")


def extend(
    old: Entry,
    entry: Entry,
    network: Path | None,
    repository: Path,
    step: Path | None = None,
    labels: Sequence[str] = (),
) -> None:
    """Write an entry with one more version and move its network and its step into it; raises OSError.

    `network` is None for a version that runs another one's, and `labels` are the network's.
    """
    (number,) = entry.versions.keys() - old.versions.keys()
    target = entry.model_file(repository, number)
    if step is not None:
        check_free(repository / entry.step_after(number))
    try:
        if network is not None:
            _move(network, target, entry.format)
        if step is not None:
            _move_step(step, entry, number, labels, repository)
        rewrite(entry, repository)
    except BaseException:
        if network is not None:
            shutil.rmtree(target.parent, ignore_errors=True)
        rewrite(old, repository)
        for folder in set(entry.folders) - set(old.folders):
            shutil.rmtree(repository / folder, ignore_errors=True)
        raise


def rewrite(entry: Entry, repository: Path) -> None:
    """Write an entry's configurations and record again, after a change of its settings or versions.

    Which versions answer stays as recorded: that may have been changed since the entry was read.
    """
    if not (repository / entry.name / RECORD).is_file():
        write_again(entry, repository)
        return
    with changing(repository, entry.name) as now:
        write_again(replace(entry, rollout=now.rollout), repository)


@contextmanager
def changing(repository: Path, name: str) -> Iterator[Entry]:
    """An entry as it is now, which no other process changes meanwhile; raises EntryError."""
    read_entry(repository, name)  # the lock would make a file for a missing one
    with locked(repository / name):
        yield read_entry(repository, name)


def write_again(entry: Entry, repository: Path) -> None:
    """Write an entry's configurations and record again, inside `changing`."""
    write_configs(entry, repository)
    size_models(repository)


def write_configs(entry: Entry, repository: Path) -> None:
    """Write an entry's configurations, version folders and record; inside `changing`, if it exists."""
    for folder, text in render(entry).items():
        path = repository / folder
        path.mkdir(parents=True, exist_ok=True)
        config = path / "config.pbtxt"
        # Triton, which may read it at any moment, sees the old text or the new one, and loads again what has changed.
        if not config.is_file() or config.read_text() != text:
            with whole_file(config) as draft_file:
                draft_file.write_text(text)
    for name, version in entry.ensembles.items():
        # Triton takes an ensemble's version from its folder, which is empty.
        keep = repository / name / str(version)
        keep.mkdir(exist_ok=True)
        for other in (repository / name).iterdir():
            if other.is_dir() and other != keep:
                shutil.rmtree(other)
    write_record(entry, repository)


def _move_step(step: Path, entry: Entry, number: int, labels: Sequence[str], repository: Path) -> None:
    folder = repository / entry.step_after(number)
    folder.mkdir(parents=True, exist_ok=True)
    shutil.move(step, folder / STEP_VERSION)
    write_labels(folder / LABELS, own_labels(entry.versions[number].spec.after) or labels)


def check_free(folder: Path) -> None:
    """Raise EntryError if a folder exists in the repository."""
    if folder.exists():
        raise EntryError(
            f"{folder} already exists and was not written by this command: move it away, or use another --name"
        )


def _reason(exc: OSError) -> str:
    """The text of an error; for shutil.Error, which has a list of failures, the text of the first failure."""
    if isinstance(exc, shutil.Error) and exc.args and isinstance(exc.args[0], list):
        return str(exc.args[0][0][-1]).partition("] ")[2].partition(": '")[0] or str(exc)
    return str(exc)


def _move(network: Path, target: Path, written_as: Format) -> None:
    if written_as is Format.FUNCTION:
        # A function needs its whole folder.
        target.parent.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(network.parent, target.parent)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    for name in cpu_network.FILES:
        beside = network.parent / name
        if beside.is_file():
            shutil.move(beside, target.parent)
    shutil.move(network, target)
