"""The place of a log's files: a folder, or a bucket by fsspec. Each file appears whole or not at all."""

from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gateway.errors import UserError
from gateway.settings import variable
from gateway.values.extras import install
from gateway.values.files import whole_file
from gateway.values.safe_path import SafePath

BUCKETS = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "az": "adlfs"}
"""The package of each kind of bucket, in addition to fsspec."""


class LogUnavailable(UserError):
    """The prediction log cannot be used; the message states the reason and what to do."""


def folder_of(url: str) -> Path | None:
    """The folder of a log on this machine; None for a bucket."""
    scheme, separator, rest = url.partition("://")
    if separator and scheme.lower() != "file":
        return None
    return Path(rest if separator else url).expanduser().resolve()


def check_packages(url: str) -> None:
    """Raise LogUnavailable if the log at a URL is of an unknown kind, or needs a package that is missing."""
    where, scheme = f"{variable('log_predictions')}={url}", url.partition("://")[0].lower()
    packages = ["pyarrow", "fsspec"]
    if folder_of(url) is None:
        if scheme not in BUCKETS:
            known = ", ".join(f"{name}://" for name in ("file", *BUCKETS))
            raise LogUnavailable(f"{where}: {scheme}:// is not supported; use a folder, or one of {known}")
        packages.append(BUCKETS[scheme])
    for package in packages:
        if find_spec(package) is None:
            command = f"pip install {package}" if package in {"gcsfs", "adlfs"} else install("log")
            raise LogUnavailable(f"{where} needs {package}: {command}")


class Store:
    """Files below one folder or prefix. Methods raise OSError, or errors of the bucket's library.

    They raise UnsafePath for a path that does not stay below it: the rows of a log may have any text.
    """

    def __init__(self, url: str) -> None:
        check_packages(url)
        import fsspec

        self.folder = folder_of(url)
        # Without a cached listing, since other processes write and delete objects.
        system, root = fsspec.core.url_to_fs(
            url if self.folder is None else str(self.folder), use_listings_cache=False, skip_instance_cache=True
        )
        self._system: Any = system
        self._root = str(root).rstrip("/")

    def write(self, path: str, data: bytes) -> None:
        """Write a file, or replace it; readers see the old or the new one."""
        if self.folder is None:
            self._system.pipe_file(self._full(path), data)
            return
        target = SafePath(path).below(self.folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(target, sync=True) as draft:
            draft.write_bytes(data)

    def read(self, path: str) -> bytes:
        """The content of a file; raises FileNotFoundError."""
        data: bytes = self._system.cat_file(self._full(path))
        return data

    def exists(self, path: str) -> bool:
        """Whether there is a file."""
        return bool(self._system.exists(self._full(path)))

    def files(self, below: str) -> list[str]:
        """The paths of the files below a folder, sorted, without drafts; [] if there is no such folder."""
        with suppress(FileNotFoundError):
            found = (str(name).removeprefix(f"{self._root}/") for name in self._system.find(self._full(below)))
            return sorted(name for name in found if not name.rpartition("/")[2].startswith("."))
        return []

    def delete(self, path: str) -> None:
        """Delete a file; a missing one is not an error."""
        with suppress(FileNotFoundError):
            self._system.rm_file(self._full(path))

    def _full(self, path: str) -> str:
        return f"{self._root}/{SafePath(path)}" if self.folder is None else str(SafePath(path).below(self.folder))
