"""Images in tar and zip files, read in place by the standard library's modules; nothing is unpacked to the disk.

fsspec's file system of a tar is not used: it seeks in one shared file, which threads may not, and a compressed tar has
no random access. Members are read in the order of the archive.
"""

import bz2
import gzip
import lzma
import math
import os
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any, BinaryIO, Self

from gateway_client import NamedImage
from gateway_client.bulk.remote import refuse
from gateway_client.files import open_regular, read_most
from gateway_client.visible import visible

ARCHIVE_SUFFIXES = frozenset({".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".zip"})
MAX_HEADER_BYTES = 2**20
"""Bytes of all headers of one member of a tar."""
MAX_ZIP_LIST_BYTES = 64 * 2**20
"""Bytes of a zip's list of members, which takes about ten times as much memory: some 700,000 members."""
FREE_BYTES = 2**30
MAX_RATIO = 100
"""An archive may inflate to FREE_BYTES plus MAX_RATIO times its own size."""


class StrictTarInfo(tarfile.TarInfo):
    """A member's header. A damaged header is an error; tarfile treats it as the end of the archive."""

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> Self:
        """Read the next header; raises ReadError if it is damaged."""
        try:
            return super().fromtarfile(archive)
        except tarfile.HeaderError as exc:
            # These two mark the end of an archive: its last blocks are empty or missing.
            if type(exc).__name__ in {"EOFHeaderError", "EmptyHeaderError"}:
                raise
            raise tarfile.ReadError(str(exc)) from exc


class _Bounded:
    """A file of which at most `left` bytes are read: no declared size decides how much memory is needed.

    It is closed with its last reader: threads read a zip's members later than they are listed.
    """

    def __init__(self, file: IO[bytes], left: float) -> None:
        self._file, self.left = file, left
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable

    def __del__(self) -> None:
        self._file.close()

    def read(self, size: int = -1) -> bytes:
        size = size if size >= 0 else MAX_HEADER_BYTES
        self.left -= size
        if self.left < 0:
            raise tarfile.ReadError("its headers are too large")
        return self._file.read(size)


def read_archive(path: Path, wants: Callable[[str], bool], max_file_bytes: int) -> Iterator[NamedImage]:
    """Yield the members that are wanted, under the name `ARCHIVE/MEMBER`.

    Damage is an error of the member or of the archive, and affects no other source.
    """
    try:
        file = open_regular(path)
        status = os.fstat(file.fileno())
        # What a sparse file does not store does not count.
        most = FREE_BYTES + MAX_RATIO * min(status.st_size, status.st_blocks * 512)
        members = _zip if path.suffix.lower() == ".zip" else _tar
        yield from members(path, file, wants, max_file_bytes, most)
    except Exception as exc:  # a damaged or hostile archive makes these modules raise errors of any type
        reason = f"the archive is damaged, or cannot be read from here on: {_reason(exc)}"
        yield NamedImage(str(path), partial(refuse, reason))


def _reason(exc: BaseException) -> str:
    return (exc.strerror if isinstance(exc, OSError) else None) or str(exc) or type(exc).__name__


def _check_total(nbytes: int, most: int) -> None:
    if nbytes > most:
        raise ValueError(f"it inflates to more than {FREE_BYTES >> 30} GiB and {MAX_RATIO} times its size")


def _zip(
    path: Path, file: BinaryIO, wants: Callable[[str], bool], max_file_bytes: int, most: int
) -> Iterator[NamedImage]:
    source = _Bounded(file, MAX_ZIP_LIST_BYTES)
    archive = zipfile.ZipFile(source)
    source.left = math.inf
    # zipfile reads no more of a member than its declared size.
    _check_total(sum(member.file_size for member in archive.infolist()), most)
    for member in archive.infolist():
        if not member.is_dir() and wants(member.filename):
            yield NamedImage(f"{path}/{member.filename}", partial(_zip_member, archive, member, max_file_bytes))


def _zip_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, max_file_bytes: int) -> bytes:
    """Read at most `max_file_bytes` + 1 bytes of a member; raises OSError if it is damaged."""
    if member.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
        # zipfile inflates the others without a bound on memory.
        raise OSError(f"it is compressed by zip's method {member.compress_type}: pack the archive with Deflate")
    try:
        with archive.open(member) as content:
            return read_most(content, max_file_bytes)
    except Exception as exc:  # as above
        raise OSError(_reason(exc)) from exc


def _inflated(file: BinaryIO) -> IO[bytes]:
    beginning = file.peek(6)  # type: ignore[attr-defined]
    opened: Any = file
    if beginning.startswith(b"\x1f\x8b"):
        opened = gzip.GzipFile(fileobj=file)
    elif beginning.startswith(b"BZh"):
        opened = bz2.BZ2File(file)
    elif beginning.startswith(b"\xfd7zXZ\0"):
        opened = lzma.LZMAFile(file)  # noqa: SIM115  # `file` is closed by its opener
    return opened  # type: ignore[no-any-return]


def _tar(
    path: Path, file: BinaryIO, wants: Callable[[str], bool], max_file_bytes: int, most: int
) -> Iterator[NamedImage]:
    with file:
        source = _Bounded(_inflated(file), MAX_HEADER_BYTES)
        archive: Any = tarfile.TarFile(fileobj=source, tarinfo=StrictTarInfo)  # type: ignore[arg-type]  # as above
        while (member := archive.next()) is not None:
            _check_total(archive.offset, most)
            if member.size < 0 or sum(map(len, archive.pax_headers.values())) > MAX_HEADER_BYTES:
                raise tarfile.ReadError("its headers are invalid or too large")
            if not member.isdir() and wants(member.name):
                source.left = max_file_bytes + MAX_HEADER_BYTES
                yield NamedImage(f"{path}/{member.name}", _tar_member(archive, member, max_file_bytes))
            source.left = MAX_HEADER_BYTES
            archive.members = []  # as tarfile's documentation suggests: there may be a million


def _tar_member(archive: tarfile.TarFile, member: tarfile.TarInfo, max_file_bytes: int) -> Callable[[], bytes]:
    if member.islnk() or member.issym():
        return partial(
            refuse, f"it is a link to {visible(member.linkname)!r}, and members of a tar are read once, in order"
        )
    content = archive.extractfile(member) if member.isfile() else None
    if content is None:
        return partial(refuse, "it is not a regular file")
    data = read_most(content, max_file_bytes)
    if len(data) < min(member.size, max_file_bytes + 1):
        raise EOFError("unexpected end of data")
    return partial(bytes, data)
