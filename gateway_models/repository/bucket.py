"""Model repositories in buckets: a working copy for the commands that change one, and copies that Tritons follow.

    s3://bucket/models          Amazon S3, and what speaks its protocol (AWS_ENDPOINT_URL)
    gs://bucket/models          Google Cloud Storage
    as://account/container/models   Azure Blob Storage, as Triton writes it

The libraries find the credentials: in the environment, on the machine or from the pod's identity.

Readers need no lock: an object appears whole, files appear before the configurations that name them, those of steps
before those of ensembles, and deletions come last.
"""

import contextlib
import json
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from gateway.errors import UserError
from gateway_local import sizing
from gateway_local.sizing import CONFIG
from gateway_plugins.shared.files import whole_file
from gateway_plugins.shared.safe_path import SafePath, UnsafePath

PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "as": "adlfs"}
"""The package that fsspec needs for each scheme."""
WHOLE_BYTES = 2**20
"""A working copy has larger files with their size and without their content: no command reads a network's weights."""
ATTEMPTS = 10
"""How often a bucket is listed for a copy while it keeps changing."""
MAX_OBJECTS = 100_000
"""Most objects of a repository."""
MAX_OBJECT_BYTES = 2**40
"""Largest object of a repository."""
MAX_WORKING_BYTES = 2**30
"""Most bytes of a working copy's files that have their content: configurations, labels, records and code."""
EMPTY = SafePath(".keep")
"""A file in the version folders of ensembles: a bucket has no empty folders, and Triton needs one for each version."""
_OWN = f"{sizing.FOLDER}/{sizing.NAME}.pbtxt"
"""The end of the paths of files that each machine writes for itself."""

Listing = Mapping[SafePath, str]
"""The objects below a repository's URL, by relative path, with what changes when their content does."""


class BucketError(UserError):
    """A bucket cannot be read or written; the message names its URL."""


class ObjectChanged(BucketError):
    """An object was deleted, or has grown, since the bucket was listed."""


def is_bucket(text: str) -> bool:
    """Whether a model repository is the URL of a bucket."""
    return "://" in text


def order(path: str, ensembles: Collection[str]) -> tuple[bool, bool, str]:
    """The sorting key of a file among those to be written: versions, then configurations, ensembles' after steps'."""
    model, _, rest = path.partition("/")
    return model in ensembles, PurePosixPath(rest).name == CONFIG, path


class RepositoryBucket:
    """A model repository below a URL; raises BucketError for a URL that is none."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        parts = urlsplit(url)
        if parts.scheme not in PACKAGES or not parts.netloc:
            known = ", ".join(f"{scheme}://" for scheme in PACKAGES)
            raise BucketError(f"{url} is no model repository: use {known} with a bucket and a path, or a folder")

    @cached_property
    def _opened(self) -> tuple[Any, str]:
        """The file system of fsspec, and the repository's path in it."""
        url, options = fsspec_url(self.url)
        package = PACKAGES[urlsplit(self.url).scheme]
        try:
            import fsspec

            # Without cached listings, since other processes write.
            system, path = fsspec.core.url_to_fs(url, use_listings_cache=False, skip_instance_cache=True, **options)
        except ImportError as exc:
            raise BucketError(f"{self.url} needs {package}: pip install {package}") from exc
        except Exception as exc:  # each library has its own errors
            raise self._failed(exc) from exc
        return system, str(path).rstrip("/")

    def _failed(self, exc: Exception) -> BucketError:
        return BucketError(f"{self.url} cannot be used: {exc or type(exc).__name__}")

    @contextlib.contextmanager
    def failures(self) -> Iterator[tuple[Any, str]]:
        """Yield the file system and the root in it; every error but FileNotFoundError becomes BucketError."""
        try:
            yield self._opened
        except (BucketError, FileNotFoundError):
            raise
        except Exception as exc:
            raise self._failed(exc) from exc

    def listing(self) -> dict[SafePath, str]:
        """Every object of the repository; empty if there is none. Raises BucketError, as `objects` does."""
        return _stamps(self.objects())

    def objects(self) -> dict[SafePath, "Object"]:
        """Every object of the repository by its relative path; empty if there is none.

        Raises BucketError if a name is no path below the repository (object stores allow any text), and for more than
        MAX_OBJECTS objects or an object of more than MAX_OBJECT_BYTES.
        """
        with self.failures() as (system, root):
            try:
                listed = system.find(root, detail=True)
            except FileNotFoundError:
                return {}
        objects: dict[SafePath, Object] = {}
        for name, info in listed.items():
            # Some tools make an empty object for a folder. This machine's own files are never in a bucket.
            if str(name) == root or info.get("type", "file") != "file" or str(name).endswith((_OWN, "/")):
                continue
            objects[self._path(str(name), root)] = self._object(str(name), info)
            if len(objects) > MAX_OBJECTS:
                raise BucketError(f"{self.url} has more than {MAX_OBJECTS:,} objects: name the folder of the models")
        return objects

    def _path(self, name: str, root: str) -> SafePath:
        try:
            return SafePath(name.removeprefix(f"{root}/"))
        except UnsafePath as exc:
            raise BucketError(f"{self.url} has an object that cannot be a file of it: {exc}; delete it") from exc

    def _object(self, name: str, info: Mapping[str, Any]) -> "Object":
        size = info.get("size")
        nbytes = size if isinstance(size, int) else 0
        if not 0 <= nbytes <= MAX_OBJECT_BYTES:
            raise BucketError(
                f"{self.url} has the object {name!r} of {nbytes:,} bytes; at most {MAX_OBJECT_BYTES:,} are allowed"
            )
        return Object(_stamp(info), nbytes)

    def download(self, path: SafePath, folder: Path, max_bytes: int) -> None:
        """Write an object to its path in `folder`, whole or not at all.

        Raises BucketError; ObjectChanged if the object was deleted, or more than `max_bytes` arrive.
        """
        with self.failures() as (system, root):
            target = path.below(folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(target) as draft:
                _save(system, f"{root}/{path}", draft, max_bytes)

    def upload(self, source: Path, path: SafePath) -> None:
        """Write a file into an object."""
        with self.failures() as (system, root):
            system.put_file(str(source), f"{root}/{path}")

    def delete(self, paths: Collection[SafePath]) -> None:
        """Delete objects that may have gone already."""
        with self.failures() as (system, root):
            for path in paths:
                with contextlib.suppress(FileNotFoundError):
                    system.rm_file(f"{root}/{path}")


def fsspec_url(url: str) -> tuple[str, dict[str, str]]:
    """The URL and options of fsspec for Triton's URL of a repository."""
    parts = urlsplit(url)
    if parts.scheme == "as":
        # The host is the account; fsspec's is the container.
        return f"abfs:/{parts.path}", {"account_name": parts.netloc.removesuffix(".blob.core.windows.net")}
    return url, {}


def _save(system: Any, name: str, draft: Path, max_bytes: int) -> None:  # noqa: ANN401  # fsspec has no types
    """Write an object's bytes into a file; raises ObjectChanged as soon as there are more than `max_bytes`."""
    from fsspec.callbacks import Callback

    def check(size: int | None, written: int, **_: object) -> None:
        if max(size or 0, written) > max_bytes:
            raise ObjectChanged(f"{name} has more than the {max_bytes:,} bytes that it was listed with: try again")

    try:
        system.get_file(name, str(draft), callback=Callback(hooks={"bound": check}))
    except FileNotFoundError as exc:
        raise ObjectChanged(f"{name} was deleted while the bucket was copied: try again") from exc
    check(None, draft.stat().st_size)  # some libraries report no progress


@dataclass(frozen=True, slots=True)
class Object:
    """An object of a bucket: what changes with its content, and its size."""

    stamp: str
    nbytes: int


def _stamps(objects: Mapping[SafePath, Object]) -> dict[SafePath, str]:
    return {path: each.stamp for path, each in objects.items()}


def _stamp(info: Mapping[str, Any]) -> str:
    """What changes with an object's content: its entity tag, or checksum, or time and size."""
    for name in ("ETag", "etag", "md5Hash", "content_md5"):
        if value := info.get(name):
            return str(value).strip('"')
    return f"{info.get('LastModified') or info.get('last_modified') or info.get('mtime')}-{info.get('size')}"


@dataclass(slots=True)
class WorkingCopy:
    """A folder with what a bucket has; `publish` writes back what has changed in it."""

    bucket: RepositoryBucket
    folder: Path
    _there: Listing = field(default_factory=dict)
    _before: dict[SafePath, tuple[int, int]] = field(default_factory=dict)

    def fetch(self) -> None:
        """Copy the bucket into the folder; large files have their size and no content."""
        objects = self.bucket.objects()
        self._there = _stamps(objects)
        whole = sum(each.nbytes for each in objects.values() if each.nbytes <= WHOLE_BYTES)
        if whole > MAX_WORKING_BYTES:
            raise BucketError(
                f"{self.bucket.url} has {whole:,} bytes in files of up to {WHOLE_BYTES:,} bytes; at most "
                f"{MAX_WORKING_BYTES:,} are copied"
            )
        for path, each in objects.items():
            if each.nbytes > WHOLE_BYTES:
                with self.bucket.failures():
                    target = path.below(self.folder)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    with target.open("wb") as file:
                        file.truncate(each.nbytes)
            else:
                self.bucket.download(path, self.folder, each.nbytes)
        self._before = _files(self.folder)

    def publish(self) -> int:
        """Write what has changed into the bucket; returns the number of objects.

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
        if self.bucket.listing() != self._there:
            raise BucketError(
                f"{self.bucket.url} was changed by someone else meanwhile: nothing was written; try again"
            )
        for path in sorted(changed, key=lambda path: order(path, ensembles)):
            self.bucket.upload(path.below(self.folder), path)
        self.bucket.delete(sorted(gone, reverse=True))
        return len(changed) + len(gone)


@contextlib.contextmanager
def working_copy(url: str) -> Iterator[WorkingCopy]:
    """A copy of a bucket's repository in a temporary folder; raises BucketError."""
    with tempfile.TemporaryDirectory(prefix="gateway-models-") as folder:
        copy = WorkingCopy(RepositoryBucket(url), Path(folder) / "models")
        copy.folder.mkdir()
        copy.fetch()
        yield copy


def _files(folder: Path) -> dict[SafePath, tuple[int, int]]:
    """Size and time of each file that belongs into a bucket."""
    paths = {SafePath(path.relative_to(folder).as_posix()): path for path in folder.rglob("*") if path.is_file()}
    return {
        name: (path.stat().st_size, path.stat().st_mtime_ns) for name, path in paths.items() if not name.endswith(_OWN)
    }


def ensembles_of(repository: Path) -> set[str]:
    """The ensembles of a repository."""
    return {name for name, (_, config) in sizing.read(repository).items() if config.all("ensemble_scheduling")}


class Follower:
    """A folder that is kept like a bucket: Triton's repository in a pod, without a library for buckets in Triton.

    What is in the folder is known by a file beside it, so that another process can go on.
    """

    def __init__(self, bucket: RepositoryBucket, folder: Path) -> None:
        self._bucket, self._folder = bucket, folder
        self._state = folder.with_name(f".{folder.name}.pulled.json")

    def update(self) -> set[str]:
        """Copy what has changed, and return the models that it belongs to; raises BucketError.

        Files that the bucket no longer has are deleted. A bucket that is empty is an error, and deletes nothing.
        """
        for _ in range(ATTEMPTS):
            objects = self._bucket.objects()
            there = _stamps(objects)
            if not any(PurePosixPath(path).name == CONFIG for path in there):
                raise BucketError(f"{self._bucket.url} holds no model repository: no MODEL/{CONFIG}")
            here = self._read()
            wanted = [path for path in there if here.get(path) != there[path] or not path.below(self._folder).is_file()]
            gone = [path for path in here if path not in there]
            if not wanted and not gone:
                return set()
            try:
                self._copy(objects, wanted, gone)
            except ObjectChanged:
                continue
            if self._bucket.listing() == there:
                return {path.top for path in (*wanted, *gone) if "/" in path}
        raise BucketError(f"{self._bucket.url} changes too fast to be copied")

    def _copy(self, there: Mapping[SafePath, Object], wanted: list[SafePath], gone: list[SafePath]) -> None:
        self._folder.parent.mkdir(parents=True, exist_ok=True)
        needed, free = sum(there[path].nbytes for path in wanted), shutil.disk_usage(self._folder.parent).free
        if needed > free:
            raise BucketError(
                f"{self._bucket.url} has {needed:,} new bytes, and {free:,} are free in {self._folder.parent}"
            )
        # Beside the folder: Triton must not see half of it.
        with tempfile.TemporaryDirectory(prefix=".pulling-", dir=self._folder.parent) as scratch:
            drafts = Path(scratch)
            for path in wanted:
                self._bucket.download(path, drafts, there[path].nbytes)
            self._folder.mkdir(exist_ok=True)
            ensembles = ensembles_of(drafts) | ensembles_of(self._folder)
            for path in sorted(wanted, key=lambda path: order(path, ensembles)):
                target = path.below(self._folder)
                target.parent.mkdir(parents=True, exist_ok=True)
                path.below(drafts).replace(target)
        for path in gone:
            target = path.below(self._folder)
            target.unlink(missing_ok=True)
            self._remove_empty(target.parent)
        with whole_file(self._state) as draft:
            draft.write_text(json.dumps(_stamps(there)))

    def _remove_empty(self, folder: Path) -> None:
        """Remove a folder without files, and those above it: to Triton, an empty folder is a version."""
        while folder != self._folder and folder.is_dir():
            if any(path.is_file() and not path.as_posix().endswith(_OWN) for path in folder.rglob("*")):
                return
            shutil.rmtree(folder, ignore_errors=True)
            folder = folder.parent

    def _read(self) -> dict[SafePath, str]:
        try:
            state = json.loads(self._state.read_text())
        except (OSError, ValueError):
            return {}
        known = {}
        for path, stamp in state.items() if isinstance(state, dict) else ():
            # An earlier release wrote names of objects as they came. Such a file is not in this folder.
            with contextlib.suppress(UnsafePath):
                known[SafePath(path)] = str(stamp)
        return known
