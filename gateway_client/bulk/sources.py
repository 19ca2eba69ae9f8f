"""The sources of images; each is an iterator that holds one name at a time. docs/guides/bulk.md lists them."""

import hashlib
import os
import re
import sys
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gateway_client import NamedImage
from gateway_client.bulk import BulkError
from gateway_client.bulk.archives import ARCHIVE_SUFFIXES, read_archive
from gateway_client.bulk.remote import image_at, is_url, list_urls, refuse
from gateway_client.bulk.tables import MAX_LINE_BYTES, TABLE_SUFFIXES, read_paths
from gateway_client.files import DEFAULT_FILE_BYTES, is_hidden, read_file
from gateway_client.images import is_image_name

STDIN = "-"
MAX_SHARDS = 10_000
_SIGNATURES = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"RIFF", b"II*\0", b"MM\0*", b"\0\0\0", b"PK\3\4", b"\x1f\x8b")
"""Signatures of images and archives; no path begins like this."""
Reading = Callable[[int], Iterator[NamedImage]]
"""Yields the images of a source; the argument is the maximum number of bytes of a file."""


@dataclass(slots=True)
class Skipped:
    """Counts the files of folders, archives and buckets that have no image's suffix."""

    number: int = 0
    example: str = ""

    def wants(self, name: str) -> bool:
        """Whether a file is taken, by its name below its source: hidden files never, others if they are images."""
        if is_hidden(name):
            return False
        if is_image_name(name):
            return True
        self.number += 1
        self.example = self.example or name
        return False


@dataclass(frozen=True, slots=True)
class Shard:
    """One of `count` parts of the images, from 1 on; an image's name decides its part, whatever else is there."""

    number: int
    count: int

    def has(self, image: NamedImage) -> bool:
        """Whether an image is in this part."""
        digest = hashlib.blake2b(image.name.encode(errors="backslashreplace"), digest_size=8).digest()
        return int.from_bytes(digest, "big") % self.count == self.number - 1


def read_shard(text: str) -> Shard:
    """Read NUMBER/COUNT; raises BulkError."""
    match = re.fullmatch(r"(\d{1,5})/(\d{1,5})", text, re.ASCII)
    shard = Shard(int(match[1]), int(match[2])) if match else None
    if shard is None or not 1 <= shard.number <= shard.count <= MAX_SHARDS:
        raise BulkError(
            f"--shard {text}: needs NUMBER/COUNT, such as 3/16: from 1 to the count, which is at most {MAX_SHARDS:,}"
        )
    return shard


class Sources:
    """Opens all sources; raises BulkError before the first image is read if one is missing or unreadable."""

    def __init__(self, sources: Iterable[str], *, column: str | None = None, shard: Shard | None = None) -> None:
        self.skipped = Skipped()
        self._shard = shard
        self._opened = [_open(source, column, self.skipped.wants) for source in sources]

    def images(self, max_file_bytes: int = DEFAULT_FILE_BYTES) -> Iterator[NamedImage]:
        """Yield the images of all sources, or those of the shard, in order.

        At most `max_file_bytes` + 1 bytes of each are read. An unreadable file or folder is also an item: its `read`
        raises OSError with the reason.
        """
        every = (image for reading in self._opened for image in reading(max_file_bytes))
        return every if self._shard is None else filter(self._shard.has, every)


def count(sources: Iterable[str], *, column: str | None = None, shard: Shard | None = None) -> int | None:
    """The number of images; None if only reading everything would show it."""
    sources = list(sources)
    tars = tuple(ARCHIVE_SUFFIXES - {".zip"})
    if any(source == STDIN or is_url(source) or source.lower().endswith(tars) for source in sources):
        return None
    return sum(1 for _ in Sources(sources, column=column, shard=shard).images())


def _open(source: str, column: str | None, wants: Callable[[str], bool]) -> Reading:
    if source == STDIN:
        return _stdin
    if is_url(source):
        return partial(list_urls, source, wants)
    path = Path(source)
    if path.is_dir():
        return partial(_folder, source, wants)
    if path.is_file() and path.suffix.lower() in TABLE_SUFFIXES:
        next(read_paths(path, column), None)  # a table without a column of paths is refused now
        return partial(_table, path, column)
    if path.is_file() and source.lower().endswith(tuple(ARCHIVE_SUFFIXES)):
        return partial(read_archive, path, wants)
    if os.path.lexists(source):
        return partial(_one, source)  # also a FIFO, a device or a broken link: its row has the error
    raise BulkError(f"there is no file or folder {source!r}")


def _one(path: str, max_file_bytes: int) -> Iterator[NamedImage]:
    yield _file(path, max_file_bytes)


def _file(path: str, max_file_bytes: int) -> NamedImage:
    return NamedImage(os.path.normpath(path), partial(read_file, path, max_file_bytes))


def _anywhere(path: str, max_file_bytes: int) -> NamedImage:
    path = path.removeprefix("file://")
    return image_at(path, max_file_bytes) if is_url(path) else _file(path, max_file_bytes)


def _table(table: Path, column: str | None, max_file_bytes: int) -> Iterator[NamedImage]:
    for number, path in enumerate(read_paths(table, column), 1):
        if isinstance(path, OSError):
            yield NamedImage(f"{table}:{number}", partial(refuse, str(path)))
        else:
            yield _anywhere(path, max_file_bytes)


def _folder(folder: str, wants: Callable[[str], bool], max_file_bytes: int) -> Iterator[NamedImage]:
    for path, error in _walk(folder):
        if error is not None:
            yield NamedImage(os.path.normpath(path), partial(refuse, f"the folder cannot be read: {error.strerror}"))
        elif wants(os.path.relpath(path, folder)):
            yield _file(path, max_file_bytes)


def _walk(root: str) -> Iterator[tuple[str, OSError | None]]:
    """Yield the files below a folder, sorted in each folder, and the folders that cannot be listed, with the error.

    Links are followed, and each folder is read once, even if links form cycles.
    """
    seen: set[tuple[int, int]] = set()
    left = [root]
    while left:
        folder = left.pop()
        try:
            status = os.stat(folder)  # noqa: PTH116  # a text, which may be any bytes
            with os.scandir(folder) as entries:
                found = sorted((entry.name, _is_folder(entry)) for entry in entries)
        except OSError as exc:
            yield folder, exc
            continue
        if (status.st_dev, status.st_ino) in seen:
            continue
        seen.add((status.st_dev, status.st_ino))
        inner = []
        for name, is_folder in found:
            path = f"{folder.rstrip('/')}/{name}"
            if not is_folder:
                yield path, None
            elif not is_hidden(name):
                inner.append(path)
        left += reversed(inner)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself: opening it reports the error
        return False


def _stdin(max_file_bytes: int) -> Iterator[NamedImage]:
    if sys.stdin.isatty():
        raise BulkError("'-' reads paths from stdin, but nothing is piped to it")
    rest, separator, first = b"", b"\n", True
    while chunk := os.read(sys.stdin.fileno(), 64 * 1024):
        if first and chunk.startswith(_SIGNATURES):
            raise BulkError("'-' reads paths from stdin, but a file's content is piped to it: name the file instead")
        rest += chunk.removeprefix(BOM_UTF8) if first else chunk
        first = False
        if b"\0" in rest:
            separator = b"\0"
        *complete, rest = rest.split(separator)
        for path in filter(None, complete):
            yield _anywhere(os.fsdecode(path).rstrip("\r"), max_file_bytes)
        if len(rest) > MAX_LINE_BYTES:
            raise BulkError(f"'-' reads paths from stdin, and a line has more than {MAX_LINE_BYTES >> 20} MiB")
    if rest:
        yield _anywhere(os.fsdecode(rest).rstrip("\r"), max_file_bytes)
