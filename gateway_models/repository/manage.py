"""Changes existing entries: their version in use, and removal."""

import shutil
from dataclasses import replace
from pathlib import Path

from gateway.triton.contract import PREPROCESSOR
from gateway_local.paths import at
from gateway_models.repository.entry import Entry, EntryError, entry_names, read_entry
from gateway_models.repository.retired import retire
from gateway_models.repository.writing import rewrite


def entries(repository: Path) -> list[Entry]:
    """Every entry with a record, by name."""
    return [read_entry(repository, name) for name in entry_names(repository)]


def use_version(repository: Path, name: str, version: int) -> Entry:
    """Switch a model to another of its versions, for instance to roll back; raises EntryError."""
    entry = entry_with_version(repository, name, version)
    entry = replace(entry, in_use=version)
    rewrite(entry, repository)
    return entry


def remove_version(repository: Path, name: str, version: int) -> tuple[Entry, tuple[str, ...]]:
    """Delete a version that is not in use; returns the entry and the removed folders. Raises EntryError."""
    old = entry_with_version(repository, name, version)
    if version == old.in_use:
        raise EntryError(
            f"version {version} of {name} is in use: `gateway model versions {name} --use N{at(repository)}` first"
        )
    entry = replace(old, versions={number: kept for number, kept in old.versions.items() if number != version})
    retire(repository, name, version)
    gone = tuple(folder for folder in old.folders if folder not in entry.folders)
    rewrite(entry, repository)
    for folder in gone:
        shutil.rmtree(repository / folder, ignore_errors=True)
    shutil.rmtree(repository / entry.classifier / str(version), ignore_errors=True)
    return entry, gone


def check_removable(repository: Path, name: str, default: str) -> Entry:
    """Read an entry that may be removed; raises EntryError if it does not exist or is needed.

    `default` is the name of the default model.
    """
    entry = read_entry(repository, name)
    if entry.preprocessor == PREPROCESSOR:
        raise EntryError(
            f"{name} is the model that comes with the project, and `gateway model export` needs its files: keep it, "
            "and make another model the default with GATEWAY_MODEL=NAME"
        )
    if name == default:
        raise EntryError(f"{name} is the default model (GATEWAY_MODEL): choose another default first")
    return entry


def remove(entry: Entry, repository: Path) -> tuple[str, ...]:
    """Delete a model's folders and return their names."""
    retire(repository, entry.name, *entry.versions)
    # The ensembles last: the record is in one of them, so an interrupted removal can be repeated.
    for folder in reversed(entry.folders):
        shutil.rmtree(repository / folder, ignore_errors=True)
    return entry.folders


def entry_with_version(repository: Path, name: str, version: int | None) -> Entry:
    """Read an entry; raises EntryError if it does not exist or lacks the version. None is the version in use."""
    entry = read_entry(repository, name)
    if version is not None and version not in entry.versions:
        numbers = ", ".join(map(str, sorted(entry.versions)))
        there = f"{'are' if len(entry.versions) > 1 else 'is'} {numbers}"
        raise EntryError(f"{name} has no version {version}; there {there}; `gateway model add` adds one")
    return entry
