"""Where the files of a log are: a folder or a bucket. Each file appears whole or not at all."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from gateway_plugins.shared.files import whole_file
from gateway_plugins.shared.safe_path import SafePath
from gateway_predictions.requirements import LogUnavailable, check_packages, folder_of, is_collector


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file, by its path below the log, such as rows/flowers/2026-01-31/….parquet."""

    path: str
    nbytes: int


class Store(Protocol):
    """Files below one folder or prefix. Methods raise OSError, or errors of the bucket's library.

    They raise UnsafePath for a path that does not stay below it: a log's rows and a bucket's listing may have any text.
    """

    def write(self, path: str, data: bytes) -> None:
        """Write a file that survives a power failure, or replace it; readers see the old or the new one."""
        ...

    def read(self, path: str) -> bytes:
        """The content of a file; raises FileNotFoundError."""
        ...

    def exists(self, path: str) -> bool:
        """Whether there is a file."""
        ...

    def files(self, below: str) -> Iterator[StoredFile]:
        """Yield the files below a folder, sorted by path; none if there is no such folder."""
        ...

    def folders(self, below: str) -> list[str]:
        """The names of the folders in a folder; [] if there is no such folder."""
        ...

    def delete(self, path: str) -> None:
        """Delete a file; a missing one is not an error."""
        ...


class FolderStore:
    """A folder of a local file system."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def write(self, path: str, data: bytes) -> None:
        """See Store.write."""
        target = self._file(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(target, sync=True) as draft:
            draft.write_bytes(data)
        # The new name is on disk only once its folder is.
        handle = os.open(target.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def read(self, path: str) -> bytes:
        """See Store.read."""
        return self._file(path).read_bytes()

    def exists(self, path: str) -> bool:
        """See Store.exists."""
        return self._file(path).exists()

    def files(self, below: str) -> Iterator[StoredFile]:
        """See Store.files; drafts are left out."""
        for folder, folders, names in os.walk(self._file(below)):
            folders.sort()
            for name in sorted(names):
                if not name.startswith("."):
                    path = Path(folder) / name
                    try:
                        nbytes = path.stat().st_size
                    except FileNotFoundError:
                        continue
                    yield StoredFile(path.relative_to(self._root).as_posix(), nbytes)

    def folders(self, below: str) -> list[str]:
        """See Store.folders."""
        try:
            with os.scandir(self._file(below)) as entries:
                return sorted(entry.name for entry in entries if entry.is_dir())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def delete(self, path: str) -> None:
        """See Store.delete; folders that become empty are deleted as well."""
        target = self._file(path)
        target.unlink(missing_ok=True)
        for folder in target.parents:
            if folder == self._root or not folder.is_relative_to(self._root):
                break
            try:
                folder.rmdir()
            except OSError:  # it has other files
                break

    def _file(self, path: str) -> Path:
        return SafePath(path).below(self._root)


class BucketStore:
    """A prefix of a bucket, by fsspec; an object that is put appears whole."""

    def __init__(self, url: str) -> None:
        import fsspec

        # Without a cached listing, since other processes write and delete objects.
        system, root = fsspec.core.url_to_fs(url, use_listings_cache=False, skip_instance_cache=True)
        self._system: Any = system
        self._root = str(root).rstrip("/")

    def write(self, path: str, data: bytes) -> None:
        """See Store.write."""
        self._system.pipe_file(self._object(path), data)

    def read(self, path: str) -> bytes:
        """See Store.read."""
        data: bytes = self._system.cat_file(self._object(path))
        return data

    def exists(self, path: str) -> bool:
        """See Store.exists."""
        return bool(self._system.exists(self._object(path)))

    def files(self, below: str) -> Iterator[StoredFile]:
        """See Store.files."""
        try:
            found = self._system.find(f"{self._root}/{below}", detail=True)
        except FileNotFoundError:
            return
        for name in sorted(found):
            yield StoredFile(str(name).removeprefix(f"{self._root}/"), int(found[name]["size"] or 0))

    def folders(self, below: str) -> list[str]:
        """See Store.folders."""
        try:
            entries = self._system.ls(self._object(below), detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return []
        names = (str(entry["name"]).rstrip("/").rpartition("/")[2] for entry in entries if entry["type"] == "directory")
        return sorted(names)

    def delete(self, path: str) -> None:
        """See Store.delete."""
        try:
            self._system.rm_file(self._object(path))
        except FileNotFoundError:
            return

    def _object(self, path: str) -> str:
        return f"{self._root}/{SafePath(path)}"


def open_store(url: str) -> Store:
    """The files of a log; raises LogUnavailable if it is a collector, or a package is missing."""
    if is_collector(url):
        raise LogUnavailable(f"{url} is a collector of events, which cannot be read: use what it writes instead")
    check_packages(url)
    folder = folder_of(url)
    return BucketStore(url) if folder is None else FolderStore(folder)
