"""An output of many files, in a folder or a bucket: each file has the rows of the same number of successive images.

A file appears whole or not at all. Its name has its number and a digest of the run's options and of its images' names,
so that a run resumes from the names alone: images of files that exist are passed over. Where the sources or the options
have changed in between, the digest differs, and the run is refused.
"""

import hashlib
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Protocol

from gateway_client import Gateway, NamedImage
from gateway_client.bulk import BulkError
from gateway_client.bulk.journal import MAX_ROW_BYTES
from gateway_client.bulk.meter import Meter
from gateway_client.bulk.remote import RemoteUnavailable, is_url, open_url
from gateway_client.bulk.rows import Row, printable
from gateway_client.bulk.run import INDEX, BulkJob, OutputExists, OutputUnwritable, count_in_background, rows
from gateway_client.bulk.sinks import converter
from gateway_client.bulk.sources import Sources
from gateway_client.files import whole_file

ROWS_PER_FILE = 10_000
DIGEST_BYTES = 8


class SourcesChanged(BulkError):
    """A file of the output has other images than the sources have now, or was written with other options."""


class Folder(Protocol):
    """Where the files are."""

    def names(self) -> list[str]:
        """The names of the files; none if there is no folder yet."""
        ...

    def put(self, file: Path, name: str) -> None:
        """Store a file of this machine, whole or not at all."""
        ...

    def remove(self, name: str) -> None:
        """Delete a file."""
        ...


class LocalFolder:
    """A folder of this machine; raises OSError."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def names(self) -> list[str]:
        """The names of the files, without the drafts that a killed run has left."""
        return [each.name for each in self._path.iterdir()] if self._path.is_dir() else []

    def put(self, file: Path, name: str) -> None:
        """Copy a file under a draft's name, which is on the disk before it gets its own."""
        self._path.mkdir(parents=True, exist_ok=True)
        with whole_file(self._path / name, sync=True) as draft:
            shutil.copyfile(file, draft)

    def remove(self, name: str) -> None:
        """Delete a file."""
        (self._path / name).unlink(missing_ok=True)


class RemoteFolder:
    """A prefix of a bucket, whose objects appear when their upload is complete; raises RemoteUnavailable."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._system, self._path = open_url(url.rstrip("/"))

    def names(self) -> list[str]:
        """The names of the objects."""
        return [name.rpartition("/")[2] for name in self._asked(self._listed)]

    def put(self, file: Path, name: str) -> None:
        """Upload a file."""
        self._asked(lambda: self._system.put_file(str(file), f"{self._path}/{name}"))

    def remove(self, name: str) -> None:
        """Delete an object."""
        self._asked(lambda: self._system.rm_file(f"{self._path}/{name}"))

    def _listed(self) -> list[str]:
        self._system.invalidate_cache()
        try:
            return list(self._system.ls(self._path, detail=False))
        except FileNotFoundError:
            return []

    def _asked(self, work: Callable[[], Any]) -> Any:  # noqa: ANN401  # fsspec has no types
        try:
            return work()
        except Exception as exc:  # each file system raises its own errors
            raise RemoteUnavailable(f"{self._url}: {exc or type(exc).__name__}") from exc


def is_folder(out: str) -> bool:
    """Whether an output is a folder of files: a URL, a name with a slash at its end, or a folder that exists."""
    return is_url(out) or out.endswith("/") or Path(out).is_dir()


class _Partition:
    """The rows of one file so far, as JSON lines in a temporary file."""

    def __init__(self, path: Path) -> None:
        self.path, self.count = path, 0
        self._file: BinaryIO = path.open("w+b")

    def add(self, row: Row) -> None:
        self._file.write(json.dumps(row, ensure_ascii=False).encode(errors="replace") + b"\n")
        self.count += 1

    def read(self) -> Iterator[Row]:
        self._file.seek(0)
        for line in iter(lambda: self._file.readline(MAX_ROW_BYTES), b""):
            yield json.loads(line)

    def close(self) -> None:
        self._file.close()


class PartitionedRun:
    """A run whose output are files of `rows_per_file` rows each, as `suffix` says: .parquet, .jsonl or .csv."""

    def __init__(
        self,
        job: BulkJob,
        out: str,
        *,
        resume: bool,
        overwrite: bool,
        rows_per_file: int = ROWS_PER_FILE,
        suffix: str = ".parquet",
    ) -> None:
        self.job, self.out, self.rows_per_file = job, out, rows_per_file
        self.suffix = suffix
        self._convert = converter(Path(f"out{suffix}"), embeddings=job.embeddings)
        self._folder: Folder = RemoteFolder(out) if is_url(out) else LocalFolder(Path(out))
        self.sources = Sources(job.sources, column=job.column, shard=job.shard)
        self.meter = Meter()
        self._prefix = "part-" if job.shard is None else f"part-{job.shard}-"
        self._existing = self._found(resume=resume, overwrite=overwrite)
        self._missing: list[int] = []
        """Numbers of the files that this run writes, in order: image i of this run belongs to `_missing[i // size]`."""
        self._digests: dict[int, str] = {}
        """By the numbers of files all of whose images have been named."""
        self._open: dict[int, _Partition] = {}
        self._stack = ExitStack()
        self._spool = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="gateway-classify-")))

    def __enter__(self) -> "PartitionedRun":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for partition in self._open.values():
            partition.close()
        self._stack.close()

    def _found(self, *, resume: bool, overwrite: bool) -> dict[int, str]:
        """The digests of the files of this shard that exist, by number; raises OutputExists."""
        own = re.compile(rf"{re.escape(self._prefix)}(\d{{6,}})-([0-9a-f]+)\.\w+")
        names = [name for name in self._folder.names() if name.startswith("part-")]
        found = {name: match for name in names if (match := own.fullmatch(name))}
        shards = "" if self.job.shard is None else f"-of-{self.job.shard.count}-"
        if other := [name for name in names if name not in found and not (shards and shards in name)]:
            raise OutputExists(f"{self.out} has {other[0]}, of another division into shards: use another folder")
        if overwrite:
            for name in found:
                self._folder.remove(name)
            return {}
        if found and not resume:
            raise OutputExists(f"{self.out} has {next(iter(found))}: continue with --resume, or replace by --overwrite")
        if other := [name for name in found if not name.endswith(self.suffix)]:
            raise OutputExists(f"{self.out} has {other[0]}, of another format than {self.suffix}")
        return {int(match[1]): match[2] for match in found.values()}

    def run(self, gateway: Gateway, tick: Callable[[Meter], None]) -> None:
        """Classify the images that are in no file yet; raises OutputUnwritable, SourcesChanged and those of `rows`."""
        count_in_background(self.job, self.meter)
        with closing(rows(self.job, gateway, self._left, self.meter, tick, indexed=True)) as answers:
            for row in answers:
                self._add(row)
        for number in sorted(self._open):
            self._finish(number)

    def _add(self, row: Row) -> None:
        number = self._missing[row.pop(INDEX) // self.rows_per_file]
        if (partition := self._open.get(number)) is None:
            partition = self._open[number] = _Partition(self._spool / str(number))
        partition.add(row)
        if partition.count == self.rows_per_file:
            self._finish(number)

    def _finish(self, number: int) -> None:
        """Write the file of a number, all of whose rows are there."""
        partition = self._open[number]
        try:
            draft = self._spool / f"{number}{self.suffix}"
            if self._convert is None:
                partition.close()
                partition.path.replace(draft)
            else:
                self._convert(partition.read(), draft)
                partition.close()
                partition.path.unlink()
            self._folder.put(draft, f"{self._prefix}{number:06}-{self._digests[number]}{self.suffix}")
            draft.unlink()
        except OSError as exc:
            raise OutputUnwritable(f"{self.out} cannot be written: {exc.strerror or exc}") from exc
        del self._open[number]

    def _left(self, max_file_bytes: int) -> Iterator[NamedImage]:
        """Yield the images that are in no file yet; the client reads them in another thread."""
        number, offset, digest = -1, self.rows_per_file, self._new_digest()
        for image in self.sources.images(max_file_bytes):
            if offset == self.rows_per_file:
                number, offset, digest = number + 1, 0, self._new_digest()
                if number not in self._existing:
                    self._missing.append(number)
            offset += 1
            digest.update(printable(image.name).encode() + b"\0")
            if offset == self.rows_per_file:
                self._named(number, digest.hexdigest())
            if number in self._existing:
                self.meter.before += 1
            else:
                yield image
        if 0 < offset < self.rows_per_file:
            self._named(number, digest.hexdigest())
        if later := [each for each in self._existing if each > number]:
            raise SourcesChanged(self._changed(max(later)))

    def _new_digest(self) -> Any:  # noqa: ANN401  # hashlib's objects have no public type
        """A digest that has the options: rows of others are not comparable."""
        given = {name: value for name, value in (self.job.parameters or {}).items() if value is not None}
        text = json.dumps([given, self.job.embeddings, self.rows_per_file], sort_keys=True)
        return hashlib.blake2b(text.encode() + b"\0", digest_size=DIGEST_BYTES)

    def _named(self, number: int, digest: str) -> None:
        if self._existing.get(number, digest) != digest:
            raise SourcesChanged(self._changed(number))
        self._digests[number] = digest

    def _changed(self, number: int) -> str:
        return (
            f"file {number} of {self.out} was written with other options, another --rows-per-file, or from other "
            "images than the sources have now: use another folder, or --overwrite to start again"
        )
