"""Model repositories in buckets, by fsspec, and working copies for the commands that change one.

    s3://bucket/models          Amazon S3, and others with its protocol (AWS_ENDPOINT_URL)
    gs://bucket/models          Google Cloud Storage
    as://account/container/models   Azure Blob Storage, as Triton writes it

The libraries find the credentials: in the environment, on the machine or from the pod's identity.

Readers need no lock: an object appears whole, files appear before the configurations that name them, configurations
of steps before configurations of ensembles, and deletions come last.
"""

import contextlib
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from gateway.errors import UserError
from gateway.values.files import whole_file
from gateway.values.safe_path import SafePath, UnsafePath
from gateway_local import sizing
from gateway_local.sizing import CONFIG

PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "as": "adlfs"}
"""The package that fsspec needs for each scheme."""
WHOLE_BYTES = 2**20
"""A working copy has larger files with their size and without their content: no command reads a network's weights."""
EMPTY = SafePath(".keep")
"""A file in the version folders of ensembles: a bucket has no empty folders, and Triton needs one for each version."""
OWN = f"{sizing.FOLDER}/{sizing.NAME}.pbtxt"
"""The end of the paths of files that each machine writes for itself, and that are not copied to buckets."""


class BucketError(UserError):
    """A bucket cannot be read or written; the message names its URL."""


class ObjectChanged(BucketError):
    """An object was changed or deleted since the bucket was listed."""


@dataclass(frozen=True, slots=True)
class Object:
    """An object of a bucket: its entity tag, which changes with its content, and its size."""

    tag: str
    nbytes: int


Objects = dict[SafePath, Object]
"""The objects below a repository's URL, by relative path."""


def is_bucket(text: str) -> bool:
    """Whether a model repository is the URL of a bucket."""
    return "://" in text


def fsspec_url(url: str) -> tuple[str, dict[str, str]]:
    """The URL and options of fsspec for Triton's URL of a repository."""
    parts = urlsplit(url)
    if parts.scheme == "as":
        # The host is the account; fsspec's is the container.
        return f"abfs:/{parts.path}", {"account_name": parts.netloc.removesuffix(".blob.core.windows.net")}
    return url, {}


class RepositoryBucket:
    """A model repository below a URL. Every method raises BucketError, and so does the constructor."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        parts = urlsplit(url)
        if parts.scheme not in PACKAGES or not parts.netloc:
            known = ", ".join(f"{scheme}://" for scheme in PACKAGES)
            raise BucketError(f"{url} is no model repository: use {known} with a bucket and a path, or a folder")
        package = PACKAGES[parts.scheme]
        target, options = fsspec_url(self.url)
        with self._errors():
            try:
                import fsspec

                # Without cached listings, since other processes write.
                self._system, root = fsspec.core.url_to_fs(
                    target, use_listings_cache=False, skip_instance_cache=True, **options
                )
            except ImportError as exc:
                raise BucketError(f"{self.url} needs {package}: pip install {package}") from exc
            self._root = f"{str(root).rstrip('/')}/"

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except BucketError:
            raise
        except FileNotFoundError as exc:
            raise ObjectChanged(f"{self.url} was changed while it was used: {exc}; try again") from exc
        except Exception as exc:  # each library has its own errors
            raise BucketError(f"{self.url} cannot be used: {exc or type(exc).__name__}") from exc

    def objects(self) -> Objects:
        """Every object of the repository; empty if there is none.

        Raises BucketError if a name is no path below the repository (object stores allow any text).
        """
        try:
            with self._errors():
                listed = self._system.find(self._root.rstrip("/"), detail=True)
        except ObjectChanged:
            return {}
        # Some tools make an empty object for a folder.
        files = {
            name.removeprefix(self._root): info
            for name, info in listed.items()
            if f"{name}/" != self._root and info.get("type", "file") == "file" and not name.endswith((OWN, "/"))
        }
        try:
            return {
                SafePath(name): Object(str(info.get("ETag") or info["etag"]), int(info["size"]))
                for name, info in files.items()
            }
        except (UnsafePath, LookupError) as exc:
            raise BucketError(f"{self.url} has an object that cannot be a file of it: {exc}; delete it") from exc

    def download(self, path: SafePath, folder: Path) -> None:
        """Write an object to its path in `folder`, whole or not at all; raises ObjectChanged if it was deleted."""
        target = path.below(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(target) as draft, self._errors():
            self._system.get_file(self._root + path, str(draft))

    def upload(self, source: Path, path: SafePath) -> None:
        """Write a file into an object."""
        with self._errors():
            self._system.put_file(str(source), self._root + path)

    def delete(self, paths: Collection[SafePath]) -> None:
        """Delete objects; missing ones are skipped."""
        for path in paths:
            with contextlib.suppress(ObjectChanged), self._errors():
                self._system.rm_file(self._root + path)


class WorkingCopy:
    """A folder with the contents of a bucket; `publish` writes its changes back."""

    def __init__(self, bucket: RepositoryBucket, folder: Path) -> None:
        self.folder = folder
        self._bucket, self._there = bucket, bucket.objects()
        for path, each in self._there.items():
            if each.nbytes <= WHOLE_BYTES:
                bucket.download(path, folder)
                continue
            target = path.below(folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as file:
                file.truncate(each.nbytes)
        self._before = _files(folder)

    def publish(self) -> int:
        """Write the changes into the bucket; returns the number of objects.

        Raises BucketError if the bucket was changed meanwhile: nothing is written then.
        """
        ensembles = ensembles_of(self.folder)
        for folder in (folder for name in ensembles for folder in (self.folder / name).glob("[0-9]*")):
            if not any(folder.iterdir()):
                EMPTY.below(folder).touch()
        now = _files(self.folder)
        changed = [path for path in now if self._before.get(path) != now[path]]
        gone = [path for path in self._before if path not in now]
        if not changed and not gone:
            return 0
        if self._bucket.objects() != self._there:
            raise BucketError(
                f"{self._bucket.url} was changed by someone else meanwhile: nothing was written; try again"
            )
        for path in in_order(changed, ensembles):
            self._bucket.upload(path.below(self.folder), path)
        self._bucket.delete(sorted(gone, reverse=True))
        return len(changed) + len(gone)


@contextlib.contextmanager
def working_copy(url: str) -> Iterator[WorkingCopy]:
    """A copy of a bucket's repository in a temporary folder; raises BucketError."""
    with tempfile.TemporaryDirectory(prefix="gateway-models-") as folder:
        yield WorkingCopy(RepositoryBucket(url), Path(folder))


def in_order(paths: Collection[SafePath], ensembles: Collection[str]) -> list[SafePath]:
    """The order in which files are written: versions, then configurations, and ensembles after their steps."""
    return sorted(paths, key=lambda path: (path.top in ensembles, path.name == CONFIG, path))


def ensembles_of(repository: Path) -> set[str]:
    """The ensembles of a repository."""
    return {name for name, (_, config) in sizing.read(repository).items() if config.all("ensemble_scheduling")}


def _files(folder: Path) -> dict[SafePath, tuple[int, int]]:
    """Size and time of each file that belongs into a bucket."""
    paths = {path: path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    return {
        SafePath(name): (path.stat().st_size, path.stat().st_mtime_ns)
        for path, name in paths.items()
        if not name.endswith(OWN)
    }
