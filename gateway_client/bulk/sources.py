"""The sources of images; each kind is an iterator that holds one name at a time.

a folder          every image file in it, at any depth, by name; hidden files and folders are skipped
a glob            "photos/**/*.jpg"
a file            one image
.tar .tgz .zip    the image files in an archive (any compression of tarfile's)
.csv .jsonl .parquet   a table with a column of paths, relative to the table's own folder
.txt              a list of paths, one per line, relative to the list's own folder
s3://bucket/…     everything below a prefix, one object, or a glob; or any other URL that fsspec supports
-                 paths on stdin, one per line (or separated by NUL, as from `find -print0`)
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from glob import has_magic
from pathlib import Path

from gateway_client import NamedImage
from gateway_client.bulk import BulkError
from gateway_client.bulk.archives import ARCHIVE_SUFFIXES, read_archive
from gateway_client.bulk.remote import image_at, is_url, list_urls
from gateway_client.bulk.shards import Shard
from gateway_client.bulk.tables import MAX_LINE_BYTES, TABLE_SUFFIXES, NoPath, TableUnreadable, read_paths
from gateway_client.bulk.walk import EVERYTHING, Pattern, split, walk
from gateway_client.files import DEFAULT_FILE_BYTES, read_file
from gateway_client.images import is_image_name

STDIN = "-"
_SIGNATURES = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"RIFF", b"II*\0", b"MM\0*", b"\0\0\0", b"PK\3\4", b"\x1f\x8b")
"""Signatures of images and archives; no path begins like this."""


class SourceMissing(BulkError):
    """A source does not exist or is empty."""


@dataclass(slots=True)
class LeftOut:
    """Counts skipped files, which have no image's suffix, and folders that links led to twice."""

    number: int = 0
    example: str = ""
    folders: int = 0
    """Number of folders that were already read under another name."""
    folder: str = ""

    def takes(self, name: str) -> bool:
        """Whether a file has an image's suffix; counts it if not."""
        if is_image_name(name):
            return True
        self.number += 1
        self.example = self.example or name
        return False

    def again(self, folder: str) -> None:
        """Count a folder that was already read."""
        self.folders += 1
        self.folder = self.folder or folder


Reading = Callable[[int], Iterator[NamedImage]]
"""Yields the images of a source; the argument is the maximum number of bytes of a file."""


class Sources:
    """Opens all sources; raises SourceMissing and TableUnreadable before the first image is read."""

    def __init__(self, sources: Iterable[str], *, column: str | None = None, shard: Shard | None = None) -> None:
        self._shard = shard
        self.left_out = LeftOut()
        self._opened = [_open(source, column, self.left_out) for source in sources]

    def images(self, max_file_bytes: int = DEFAULT_FILE_BYTES) -> Iterator[NamedImage]:
        """Yield the images of all sources, or those of the shard, in order.

        At most `max_file_bytes` + 1 bytes of each are read. An unreadable file or folder is also an item: its `read`
        raises OSError with the reason.
        """
        every = (image for reading in self._opened for image in reading(max_file_bytes))
        return every if self._shard is None else filter(self._shard.has, every)


def count(sources: Iterable[str], *, column: str | None = None, shard: Shard | None = None) -> int | None:
    """The number of images; None if only reading everything would show it."""
    number = 0
    for source in sources:
        if source == STDIN or is_url(source) or _is_tar(source):
            return None
        for _ in Sources([source], column=column, shard=shard).images():
            number += 1
    return number


def _is_tar(source: str) -> bool:
    return source.lower().endswith(tuple(ARCHIVE_SUFFIXES - {".zip"}))


def _open(source: str, column: str | None, left_out: LeftOut) -> Reading:
    if source == STDIN:
        return _stdin
    if is_url(source):
        return partial(list_urls, source, left_out.takes)
    path = Path(source)
    if path.is_dir():
        return partial(_walk, source, EVERYTHING, left_out.takes, left_out.again)
    if path.is_file():
        if path.suffix.lower() in TABLE_SUFFIXES:
            return _open_table(path, column)
        if source.lower().endswith(tuple(ARCHIVE_SUFFIXES)):
            return partial(read_archive, path, left_out.takes)
        return partial(_one, source)
    if has_magic(source) and not os.path.lexists(source):
        folder, pattern = split(source, has_magic)
        if not Path(folder).is_dir() or next(walk(folder, pattern, LeftOut().again), None) is None:
            raise SourceMissing(f"no file matches {source!r}")
        return partial(_walk, folder, pattern, bool, left_out.again)
    if os.path.lexists(source):
        return partial(_one, source)  # a FIFO, a device or a broken link: its row has the error
    raise SourceMissing(f"there is no file or folder {source!r}")


def _one(path: str, max_file_bytes: int) -> Iterator[NamedImage]:
    yield _file(path, max_file_bytes)


def _open_table(table: Path, column: str | None) -> Reading:
    try:
        next(read_paths(table, column), None)
    except OSError:
        return partial(_one, str(table))
    return partial(_table, table, column)


def _table(table: Path, column: str | None, max_file_bytes: int) -> Iterator[NamedImage]:
    try:
        for number, path in enumerate(read_paths(table, column), 1):
            if isinstance(path, NoPath):
                yield NamedImage(f"{table}:{number}", partial(_refuse, path.reason))
            else:
                yield _local_or_remote(path, max_file_bytes)
    except (OSError, TableUnreadable) as exc:  # the table has changed since it was opened
        yield NamedImage(str(table), partial(_refuse, str(exc)))


def _refuse(reason: str) -> bytes:
    raise OSError(reason)


def _walk(
    folder: str,
    pattern: Pattern,
    takes: Callable[[str], bool],
    again: Callable[[str], None],
    max_file_bytes: int,
) -> Iterator[NamedImage]:
    for path, error in walk(folder, pattern, again):
        if error is not None:
            reason = f"the folder cannot be read: {error.strerror}"
            yield NamedImage(os.path.normpath(path), partial(_refuse, reason))
        elif takes(path):
            yield _file(path, max_file_bytes)


def _file(path: str, max_file_bytes: int) -> NamedImage:
    return NamedImage(os.path.normpath(path), partial(read_file, path, max_file_bytes))


def _local_or_remote(path: str, max_file_bytes: int) -> NamedImage:
    if path.startswith("file://"):
        path = path.removeprefix("file://")
    return image_at(path, max_file_bytes) if is_url(path) else _file(path, max_file_bytes)


def _stdin(max_file_bytes: int) -> Iterator[NamedImage]:
    if sys.stdin.isatty():
        raise SourceMissing("'-' reads paths from stdin, but nothing is piped to it")
    rest = b""
    separator: bytes | None = None
    while chunk := os.read(sys.stdin.fileno(), 64 * 1024):
        if separator is None and not rest and chunk.startswith(_SIGNATURES):
            raise SourceMissing(
                "'-' reads paths from stdin, but a file's content is piped to it: name the file instead"
            )
        rest += chunk
        if separator is None:
            separator = b"\0" if b"\0" in rest else b"\n" if b"\n" in rest else None
        if separator is not None:
            *complete, rest = rest.split(separator)
            for raw in filter(None, complete):
                yield _named(raw, max_file_bytes)
        if len(rest) > MAX_LINE_BYTES:
            raise SourceMissing(f"'-' reads paths from stdin, and a line has more than {MAX_LINE_BYTES >> 20} MiB")
    if rest:
        yield _named(rest, max_file_bytes)


def _named(raw: bytes, max_file_bytes: int) -> NamedImage:
    return _local_or_remote(os.fsdecode(raw).rstrip("\r"), max_file_bytes)
