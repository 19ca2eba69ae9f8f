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
from gateway_client.files import DEFAULT_FILE_BYTES, is_hidden, open_regular, read_file
from gateway_client.images import is_image_name

STDIN = "-"
LIST_SUFFIX = ".txt"
MAX_LINE_BYTES = 2**20
MAX_SHARDS = 10_000
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
    """One of `count` parts of the images, from 1 on; an image's name alone decides its part."""

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

    def __init__(self, sources: Iterable[str], *, shard: Shard | None = None) -> None:
        self.skipped = Skipped()
        self._shard = shard
        self._opened = [_open(source, self.skipped.wants) for source in sources]

    def images(self, max_file_bytes: int = DEFAULT_FILE_BYTES) -> Iterator[NamedImage]:
        """Yield the images of all sources, or of the shard, in order.

        At most `max_file_bytes` + 1 bytes of each are read. An unreadable file or folder is also an item: its `read`
        raises OSError with the reason.
        """
        every = (image for reading in self._opened for image in reading(max_file_bytes))
        return every if self._shard is None else filter(self._shard.has, every)


def _open(source: str, wants: Callable[[str], bool]) -> Reading:
    if source == STDIN:
        return _stdin
    if is_url(source):
        return partial(list_urls, source, wants)
    path = Path(source)
    if path.is_dir():
        return partial(_folder, source, wants)
    if path.suffix.lower() == LIST_SUFFIX and path.is_file():
        return partial(_list, path)
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


def _list(path: Path, max_file_bytes: int) -> Iterator[NamedImage]:
    try:
        with open_regular(path) as file:
            for line in _lines(file.fileno(), str(path)):
                yield _anywhere(line if is_url(line) else str(path.parent / line), max_file_bytes)
    except OSError as exc:
        raise BulkError(f"{path} cannot be read: {exc.strerror or exc}") from exc


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
    left = [root]  # not os.walk: before Python 3.12 it recurses, and fails for about 1,000 levels of folders
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
    for line in _lines(sys.stdin.fileno(), "stdin"):
        yield _anywhere(line, max_file_bytes)


def _lines(descriptor: int, name: str) -> Iterator[str]:
    """Yield the paths in a file, one per line or separated by NUL; raises BulkError if it is not a list of paths."""
    rest, separator, first = b"", b"\n", True
    while chunk := os.read(descriptor, 64 * 1024):
        rest += chunk.removeprefix(BOM_UTF8) if first else chunk
        first = False
        if b"\0" in rest:
            separator = b"\0"
        *complete, rest = rest.split(separator)
        yield from _paths(complete)
        if len(rest) > MAX_LINE_BYTES:
            raise BulkError(f"{name} is not a list of paths: a line has more than {MAX_LINE_BYTES >> 20} MiB")
    yield from _paths([rest])


def _paths(lines: list[bytes]) -> Iterator[str]:
    return filter(None, (os.fsdecode(line).rstrip("\r") for line in lines))
