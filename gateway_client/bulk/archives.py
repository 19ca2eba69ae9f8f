"""Images in tar and zip files, read in the order of the archive, without unpacking anything to the disk.

Declared sizes are not trusted: a member is inflated up to one byte past the file limit, whatever its declared size,
and a whole archive as far as `InflationBudget` allows.
"""

import bz2
import lzma
import os
import struct
import tarfile
import weakref
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO, Self

from gateway_client import NamedImage
from gateway_client.bulk.inflate import (
    LZMA_HEADER_BYTES,
    Deflate,
    InflationBudget,
    inflated,
    inflater_of,
    lzma_of_zip,
)
from gateway_client.files import PIECE_BYTES, open_regular, read_most

ARCHIVE_SUFFIXES = frozenset({".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".zip"})
MAX_HEADER_BYTES = 2**20
"""Bytes of all headers of one member of a tar: its name, its pax records and the map of a sparse file."""
MAX_ZIP_LIST_BYTES = 64 * 2**20
"""Bytes of a zip's list of members, which takes about ten times as much memory: some 700,000 members."""
_LOCAL_HEADER = struct.Struct("<4s22xHH")
_ENCRYPTED = 0x1

DAMAGED = (
    *(tarfile.TarError, zipfile.BadZipFile, EOFError, OSError, zlib.error, lzma.LZMAError, struct.error),
    *(ValueError, ArithmeticError, LookupError, RecursionError, MemoryError, NotImplementedError, RuntimeError),
)
"""Errors that reading a damaged or hostile archive raises."""
LOST = "the archive is damaged here, and what follows in it cannot be read"


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


def read_archive(path: Path, wanted: Callable[[str], bool], max_file_bytes: int) -> Iterator[NamedImage]:
    """Yield the members whose name is wanted, under the name `ARCHIVE/MEMBER`.

    Damage is an error of the member or of the archive, and affects no other source.
    """
    members = _zip if path.suffix.lower() == ".zip" else _tar
    try:
        yield from members(path, wanted, max_file_bytes)
    except DAMAGED as exc:
        yield NamedImage(str(path), partial(_refuse, f"it cannot be read as an archive: {_reason(exc)}"))


def _reason(exc: BaseException) -> str:
    return (exc.strerror if isinstance(exc, OSError) else None) or str(exc) or type(exc).__name__


def _refuse(reason: str) -> bytes:
    raise OSError(reason)


def _budget(file: BinaryIO) -> InflationBudget:
    found = os.fstat(file.fileno())
    return InflationBudget(
        min(found.st_size, found.st_blocks * 512)
    )  # the apparent size of a sparse file exceeds its data


# --- zip -------------------------------------------------------------------------------------------------------------


class _ZipList:
    """The file that zipfile reads the list of members from; raises BadZipFile if the list is too long."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable

    def read(self, size: int = MAX_ZIP_LIST_BYTES) -> bytes:
        if not 0 <= size <= MAX_ZIP_LIST_BYTES:
            raise zipfile.BadZipFile(f"its list of members has more than {MAX_ZIP_LIST_BYTES >> 20} MiB")
        return read_most(self._file, size - 1)  # memory grows as bytes arrive: a declared size may be wrong


class _ZipFile:
    """A zip whose members are read from several threads; it stays open while a member may be read."""

    def __init__(self, path: Path) -> None:
        with open_regular(path) as file:
            with zipfile.ZipFile(_ZipList(file)) as listed:
                self.members = listed.infolist()
            self._budget = _budget(file)
            self._handle = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._handle)

    def read(self, member: zipfile.ZipInfo, max_bytes: int) -> bytes:
        """Read at most `max_bytes` + 1 bytes of a member; raises OSError if it is damaged."""
        try:
            wanted = min(member.file_size, max_bytes + 1)
            data = read_most(_Pieces(self._pieces(member)), wanted - 1)
            if len(data) < wanted:
                raise EOFError("it has fewer bytes than declared")
            if wanted == member.file_size and zlib.crc32(data) != member.CRC:
                raise ValueError("its CRC-32 is wrong")
        except DAMAGED as exc:
            raise OSError(_reason(exc)) from exc
        return data

    def _pieces(self, member: zipfile.ZipInfo) -> Iterator[bytes]:
        if member.flag_bits & _ENCRYPTED:
            raise ValueError("it is encrypted")
        for piece in self._inflated(member):
            self._budget.charge(len(piece))
            yield piece

    def _inflated(self, member: zipfile.ZipInfo) -> Iterator[bytes]:
        signature, name, extra = _LOCAL_HEADER.unpack(os.pread(self._handle, _LOCAL_HEADER.size, member.header_offset))
        if signature != b"PK\3\4":
            raise ValueError("its header is damaged")
        chunks = self._chunks(member.header_offset + _LOCAL_HEADER.size + name + extra, member.compress_size)
        match member.compress_type:
            case zipfile.ZIP_STORED:
                return chunks
            case zipfile.ZIP_DEFLATED:
                return inflated(chunks, partial(Deflate, -zlib.MAX_WBITS))
            case zipfile.ZIP_BZIP2:
                return inflated(chunks, bz2.BZ2Decompressor)
            case zipfile.ZIP_LZMA:
                first = next(chunks, b"")
                inflater = lzma_of_zip(first[:LZMA_HEADER_BYTES])
                return inflated(_after(first[LZMA_HEADER_BYTES:], chunks), lambda: inflater)
        raise ValueError(f"it is compressed by method {member.compress_type}, which is not supported")

    def _chunks(self, begin: int, size: int) -> Iterator[bytes]:
        end = begin + size
        while begin < end and (chunk := os.pread(self._handle, min(PIECE_BYTES, end - begin), begin)):
            begin += len(chunk)
            yield chunk


def _after(first: bytes, chunks: Iterator[bytes]) -> Iterator[bytes]:
    if first:
        yield first
    yield from chunks


def _zip(path: Path, wanted: Callable[[str], bool], max_file_bytes: int) -> Iterator[NamedImage]:
    archive = _ZipFile(path)
    for member in archive.members:
        if not member.is_dir() and wanted(member.filename):
            yield NamedImage(f"{path}/{member.filename}", partial(archive.read, member, max_file_bytes))


# --- tar -------------------------------------------------------------------------------------------------------------


class _Pieces:
    """A forward-only file over an iterator of bytes."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._piece = memoryview(b"")
        self._position = 0

    def tell(self) -> int:
        return self._position

    def read(self, size: int) -> bytes:
        found = []
        while size > 0 and self._fill():
            found.append(bytes(self._take(size)))
            size -= len(found[-1])
        return b"".join(found)

    def seek(self, position: int) -> int:
        while self._position < position and self._fill():
            self._take(position - self._position)
        return self._position

    def _fill(self) -> bool:
        while not self._piece:
            if (piece := next(self._pieces, None)) is None:
                return False
            self._piece = memoryview(piece)
        return True

    def _take(self, size: int) -> memoryview:
        taken, self._piece = self._piece[:size], self._piece[size:]
        self._position += len(taken)
        return taken


class _TarStream:
    """The file that tarfile reads: forward-only, with at most `allowance` bytes read per member."""

    def __init__(self, file: BinaryIO) -> None:
        new = inflater_of(file.peek(16)[:16])  # type: ignore[attr-defined]
        self._stream = file if new is None else _Pieces(_charged(inflated(_chunks(file), new), _budget(file)))
        self.allowance = MAX_HEADER_BYTES

    def tell(self) -> int:
        return self._stream.tell()

    def read(self, size: int) -> bytes:
        self.allowance -= size
        if self.allowance < 0:
            raise tarfile.ReadError(f"a header has more than {MAX_HEADER_BYTES >> 20} MiB")
        return self._stream.read(size)

    def seek(self, position: int) -> int:
        if position < self._stream.tell():
            raise tarfile.ReadError("a header refers to what is before it")  # which may loop forever
        return self._stream.seek(position)


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    while chunk := file.read(PIECE_BYTES):
        yield chunk


def _charged(pieces: Iterator[bytes], budget: InflationBudget) -> Iterator[bytes]:
    for piece in pieces:
        budget.charge(len(piece))
        yield piece


def _tar(path: Path, wanted: Callable[[str], bool], max_file_bytes: int) -> Iterator[NamedImage]:
    # As a stream: a compressed tar has no random access, so each member is read when it is reached.
    with open_regular(path) as file:
        stream = _TarStream(file)
        archive = tarfile.TarFile(fileobj=stream, tarinfo=StrictTarInfo)  # type: ignore[arg-type]
        while True:
            name = str(path)
            try:
                stream.allowance = MAX_HEADER_BYTES
                if (member := archive.next()) is None:
                    return
                if sum(map(len, archive.pax_headers.values())) > MAX_HEADER_BYTES:
                    raise tarfile.ReadError(f"its global headers have more than {MAX_HEADER_BYTES >> 20} MiB")
                image = None
                if not member.isdir() and wanted(member.name):
                    name = f"{path}/{member.name}"
                    stream.allowance = max_file_bytes + MAX_HEADER_BYTES
                    image = NamedImage(name, _member(archive, member, max_file_bytes))
            except DAMAGED as exc:
                yield NamedImage(name, partial(_refuse, f"{LOST}: {_reason(exc)}"))
                return
            if image is not None:
                yield image
            # Members that were read are no longer needed, and there may be a million.
            archive.members = []  # type: ignore[attr-defined]  # as tarfile's documentation suggests; missing in typeshed


def _member(archive: tarfile.TarFile, member: tarfile.TarInfo, max_file_bytes: int) -> Callable[[], bytes]:
    if member.islnk() or member.issym():
        return partial(_refuse, f"it is a link to {member.linkname!r}, and members of a tar are read once, in order")
    content = archive.extractfile(member) if member.isfile() else None
    if content is None:
        return partial(_refuse, "it is not a regular file")
    if member.size < 0:
        raise tarfile.ReadError("a header has a negative size")
    data = read_most(content, max_file_bytes)
    if len(data) < min(member.size, max_file_bytes + 1):
        raise EOFError("unexpected end of data")
    return partial(bytes, data)
