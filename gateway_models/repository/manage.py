"""Changes existing entries: which versions answer, and removal."""

import getpass
import os
import shutil
from dataclasses import replace
from pathlib import Path

from gateway.triton.configs import read_model_config
from gateway.triton.contract import PREPROCESSOR, SEQUENCE_FRAMES, SEQUENCE_MODEL, SEQUENCE_PREDICTION
from gateway.values.rollout import Rollout
from gateway_local.paths import SHIPPED_MODELS, at
from gateway_models.repository.entry import Entry, EntryError, check_name, check_versions, entry_names, read_entry
from gateway_models.repository.retired import retire
from gateway_models.repository.writing import changing, write_again, write_configs


def entries(repository: Path) -> list[Entry]:
    """Every entry with a record, by name."""
    return [read_entry(repository, name) for name in entry_names(repository)]


def use(repository: Path, name: str, rollout: Rollout) -> Rollout:
    """Record which versions of a model answer, and return the previous record; raises EntryError."""
    try:
        with changing(repository, name) as entry:
            check_versions(entry, *map(int, rollout.versions))
            write_configs(replace(entry, rollout=rollout), repository)
            return entry.rollout
    except OSError as exc:
        raise EntryError(f"cannot write into {repository}: {exc.strerror}") from exc


def user() -> str:
    """Who changes a repository by a command: the name of the user, or its number in a container that has no names."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def remove_version(repository: Path, name: str, version: int) -> tuple[Entry, tuple[str, ...]]:
    """Delete a version that does not answer; returns the entry and the removed folders. Raises EntryError."""
    with changing(repository, name) as old:
        check_versions(old, version)
        if str(version) in old.rollout.versions:
            answers = "answers requests" if str(version) in old.rollout.shares else "is a shadow"
            others = f"let others do so with `gateway model use {name} …{at(repository)}` first"
            raise EntryError(f"version {version} of {name} {answers}: {others}")
        entry = replace(old, versions={number: kept for number, kept in old.versions.items() if number != version})
        in_use = {entry.network_of(number) for number in entry.versions}
        retire(repository, name, version)
        gone = tuple(folder for folder in old.folders if folder not in entry.folders)
        write_again(entry, repository)
        for folder in gone:
            shutil.rmtree(repository / folder, ignore_errors=True)
        # Other versions may use the removed version's network, with other post-processing steps.
        if (network := old.network_of(version)) not in in_use:
            shutil.rmtree(repository / entry.classifier / str(network), ignore_errors=True)
        return entry, gone


def check_removable(repository: Path, name: str, default: str) -> Entry:
    """Read an entry that may be removed; raises EntryError if it does not exist or is needed.

    `default` is the name of the default model.
    """
    entry = read_entry(repository, name)
    if entry.preprocessor == PREPROCESSOR:
        raise EntryError(
            f"{name} is the model that comes with the project, and `gateway model add default` needs its files: "
            "keep it, and make another model the default with GATEWAY_MODEL=NAME"
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
    if version is not None:
        check_versions(entry, version)
    return entry


def provide_stateful(name: str, repository: Path) -> bool:
    """Ensure that a repository has a stateful model; copies the shipped one if needed, and returns whether it did.

    Raises EntryError if the user's own does not exist or cannot follow a stream.
    """
    check_name(name)
    folder = repository / name
    if name == SEQUENCE_MODEL and not folder.exists():
        try:
            shutil.copytree(SHIPPED_MODELS / name, folder, ignore=shutil.ignore_patterns("__pycache__"))
        except OSError as exc:
            raise EntryError(f"cannot write {folder}: {exc}") from exc
        return True
    try:
        config = read_model_config(folder / "config.pbtxt")
    except (OSError, ValueError) as exc:
        raise EntryError(
            f"{name!r} cannot follow streams: {exc}; docs/guides/streams.md has an example of such a model"
        ) from exc
    given = {output.name for output in config.output}
    if not config.HasField("sequence_batching") or not given.issuperset({SEQUENCE_PREDICTION, SEQUENCE_FRAMES}):
        raise EntryError(
            f"{folder / 'config.pbtxt'} needs sequence_batching and the outputs {SEQUENCE_PREDICTION} and "
            f"{SEQUENCE_FRAMES} to follow streams; docs/guides/streams.md has an example"
        )
    return False
