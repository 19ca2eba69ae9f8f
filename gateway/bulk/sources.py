"""Where pictures come from, each kind as an iterator that holds no more than a name at a time.

a folder          every image file in it, at any depth, by name; hidden files and folders are left out
a glob            "photos/**/*.jpg"
a file            one picture
.tar .tgz .zip    the image files in an archive (any compression of tarfile's)
.csv .jsonl .parquet   a table with a column of paths, relative to the table's own folder
.txt              a list of paths, one to a line, relative to the list's own folder
s3://bucket/…     what is below a prefix, or any other URL of fsspec's; also one object, or a glob
-                 paths on stdin, one to a line (or apart by NUL, as from `find -print0`)
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from glob import has_magic, iglob
from pathlib import Path

from gateway.bulk.archives import ARCHIVE_SUFFIXES, read_archive
from gateway.bulk.remote import is_url, list_urls, picture_at
from gateway.bulk.tables import TABLE_SUFFIXES, read_paths
from gateway.client import Picture
from gateway.errors import UserError
from gateway.ingest.image_info import SUFFIXES

STDIN = "-"
_SIGNATURES = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"RIFF", b"II*\0", b"MM\0*", b"\0\0\0", b"PK\3\4", b"\x1f\x8b")
"""How pictures and archives begin, and no path does."""


class SourceMissing(UserError):
    """There is nothing where pictures should come from."""


def is_image_name(name: str) -> bool:
    """Whether a file in a folder or an archive is meant as a picture."""
    return os.path.splitext(name)[1].lower() in SUFFIXES  # noqa: PTH122  # a name, not a path


@dataclass(slots=True)
class LeftOut:
    """Files that were not taken for pictures, by their names."""

    number: int = 0
    example: str = ""

    def takes(self, name: str) -> bool:
        """Whether a file is meant as a picture; counts it if not."""
        if is_image_name(name):
            return True
        self.number += 1
        self.example = self.example or name
        return False


def pictures(
    sources: Iterable[str], *, column: str | None = None, left_out: LeftOut | None = None
) -> Iterator[Picture]:
    """The pictures of all sources, one after another; raises SourceMissing before the first one is asked for.

    `left_out` counts the files of folders, archives and buckets that are not.
    """
    opened = [_open(source, column, left_out or LeftOut()) for source in sources]
    return (picture for source in opened for picture in source())


def count(sources: Iterable[str], *, column: str | None = None) -> int | None:
    """How many there are; None where only reading everything would show it."""
    number = 0
    for source in sources:
        if source == STDIN or is_url(source) or _is_tar(source):
            return None
        for _ in _open(source, column, LeftOut())():
            number += 1
    return number


def _is_tar(source: str) -> bool:
    return source.lower().endswith(tuple(ARCHIVE_SUFFIXES - {".zip"}))


def _open(source: str, column: str | None, left_out: LeftOut) -> Callable[[], Iterator[Picture]]:
    if source == STDIN:
        return _stdin
    if is_url(source):
        return lambda: list_urls(source, left_out.takes)
    path = Path(source)
    if path.is_dir():
        return lambda: _folder(source, left_out)
    if path.is_file():
        if path.suffix.lower() in TABLE_SUFFIXES:
            return lambda: _table(path, column)
        if source.lower().endswith(tuple(ARCHIVE_SUFFIXES)):
            return lambda: read_archive(path, left_out.takes)
        return lambda: iter([_file(source)])
    if has_magic(source):
        if next(iglob(source, recursive=True), None) is None:  # noqa: PTH207  # Path.glob takes no absolute pattern
            raise SourceMissing(f"no file matches {source!r}")
        return lambda: (_file(each) for each in iglob(source, recursive=True) if Path(each).is_file())  # noqa: PTH207
    raise SourceMissing(f"there is no file or folder {source!r}")


def _table(table: Path, column: str | None) -> Iterator[Picture]:
    for number, path in enumerate(read_paths(table, column), 1):
        yield Picture(f"{table}:{number}", _no_path) if path is None else _local_or_remote(path)


def _no_path() -> bytes:
    raise OSError("this row of the table has no path")


def _folder(folder: str, left_out: LeftOut) -> Iterator[Picture]:
    """Depth first, by name, so that a second run meets the same order; holds the names of one folder at each depth."""
    try:
        with os.scandir(folder) as entries:
            # A name and a flag each: a folder of 100,000 files takes some 10 MB here, and no DirEntry is kept.
            found = sorted((entry.name, entry.is_dir()) for entry in entries if not entry.name.startswith("."))
    except OSError as exc:
        raise SourceMissing(f"the folder {folder!r} cannot be read: {exc.strerror}") from exc
    for name, is_folder in found:
        if is_folder:
            yield from _folder(f"{folder}/{name}", left_out)
        elif left_out.takes(path := os.path.join(folder, name)):  # noqa: PTH118  # Path objects by the hundred thousand
            yield _file(path)


def _file(path: str) -> Picture:
    return Picture(os.path.normpath(path), Path(path).read_bytes)


def _local_or_remote(path: str) -> Picture:
    return picture_at(path) if is_url(path) else _file(path)


def _stdin() -> Iterator[Picture]:
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
            yield from map(_named, filter(None, complete))
    if rest:
        yield _named(rest)


def _named(raw: bytes) -> Picture:
    return _local_or_remote(os.fsdecode(raw).rstrip("\r"))
