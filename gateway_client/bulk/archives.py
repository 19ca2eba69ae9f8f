"""Images in tar and zip files, read in the order of the archive, without unpacking anything to the disk.

Declared sizes are not trusted: a member is inflated up to one byte past the file limit, whatever its declared size,
and a whole archive as far as `InflationBudget` allows.
"""

import bz2
import gzip
import io
import lzma
import os
import struct
import tarfile
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO, Self

from gateway_client import NamedImage
from gateway_client.files import PIECE_BYTES, Stream, open_regular, read_most

ARCHIVE_SUFFIXES = frozenset({".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".zip"})
MAX_HEADER_BYTES = 2**20
"""Bytes of all headers of one member of a tar: its name, its pax records and the map of a sparse file."""
MAX_ZIP_LIST_BYTES = 64 * 2**20
"""Bytes of a zip's list of members, which takes about ten times as much memory: some 700,000 members."""
FREE_BYTES = 2**30
MAX_RATIO = 100
"""An archive may inflate to FREE_BYTES plus MAX_RATIO times its own size."""
MAX_LZMA_BYTES = 256 * 2**20
"""Maximum memory for LZMA; `xz -9` needs 65 MiB."""
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


class InflatesTooFar(ValueError):
    """An archive inflates to more than its size allows."""


class InflationBudget:
    """Limits the total bytes that one archive may inflate to; threads share it."""

    def __init__(self, archive_bytes: int) -> None:
        self._left = FREE_BYTES + MAX_RATIO * archive_bytes
        self._lock = threading.Lock()

    @classmethod
    def of_file(cls, file: BinaryIO) -> Self:
        """The budget of an open archive; what a sparse file does not store does not count."""
        status = os.fstat(file.fileno())
        return cls(min(status.st_size, status.st_blocks * 512))

    def charge(self, nbytes: int) -> None:
        """Count bytes; raises InflatesTooFar beyond the limit."""
        with self._lock:
            self._left -= nbytes
            if self._left < 0:
                raise InflatesTooFar(
                    f"the archive inflates to more than {FREE_BYTES >> 30} GiB and {MAX_RATIO} times its size"
                )


class _Charged:
    """A stream whose bytes count towards a budget."""

    def __init__(self, stream: Stream, budget: InflationBudget) -> None:
        self._stream, self._budget = stream, budget

    def read(self, size: int) -> bytes:
        data = self._stream.read(size)
        self._budget.charge(len(data))
        return data


# --- zip -------------------------------------------------------------------------------------------------------------


class _ZipSource:
    """The file that zipfile reads; raises BadZipFile if the list of members is too long.

    It is closed with the last member that may be read: threads read them later than they are listed.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable

    def __del__(self) -> None:
        self._file.close()

    def read(self, size: int = MAX_ZIP_LIST_BYTES) -> bytes:
        if not 0 <= size <= MAX_ZIP_LIST_BYTES:
            raise zipfile.BadZipFile(f"its list of members has more than {MAX_ZIP_LIST_BYTES >> 20} MiB")
        return read_most(self._file, size - 1)  # memory grows as bytes arrive: a declared size may be wrong


def _zip(path: Path, wanted: Callable[[str], bool], max_file_bytes: int) -> Iterator[NamedImage]:
    file = open_regular(path)
    archive, budget = zipfile.ZipFile(_ZipSource(file)), InflationBudget.of_file(file)
    for member in archive.infolist():
        if not member.is_dir() and wanted(member.filename):
            yield NamedImage(f"{path}/{member.filename}", partial(_zip_member, archive, member, budget, max_file_bytes))


def _zip_member(
    archive: zipfile.ZipFile, member: zipfile.ZipInfo, budget: InflationBudget, max_file_bytes: int
) -> bytes:
    """Read at most `max_file_bytes` + 1 bytes of a member; raises OSError if it is damaged."""
    try:
        if member.flag_bits & _ENCRYPTED:
            raise ValueError("it is encrypted")
        if member.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
            # zipfile inflates the others without a bound on memory.
            raise ValueError(f"it is compressed by zip's method {member.compress_type}: pack the archive with Deflate")
        with archive.open(member) as content:
            data = read_most(_Charged(content, budget), max_file_bytes)
        if len(data) < min(member.file_size, max_file_bytes + 1):
            raise EOFError("it has fewer bytes than declared")
    except DAMAGED as exc:
        raise OSError(_reason(exc)) from exc
    return data


# --- tar -------------------------------------------------------------------------------------------------------------


class _LzmaFile(io.RawIOBase):
    """Decompresses concatenated LZMA streams; lzma.LZMAFile has no limit on memory."""

    def __init__(self, file: BinaryIO, container: int) -> None:
        self._file = file
        self._container = container
        self._decompressor = self._new()

    def _new(self) -> lzma.LZMADecompressor:
        return lzma.LZMADecompressor(self._container, memlimit=MAX_LZMA_BYTES)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # as io.BufferedReader calls it
        piece = b""
        while not piece:
            data = b""
            if self._decompressor.eof:
                data = self._decompressor.unused_data.lstrip(b"\0")  # xz pads with zeros
                while not data:
                    if not (chunk := self._file.read(PIECE_BYTES)):
                        return 0
                    data = chunk.lstrip(b"\0")
                self._decompressor = self._new()
            elif self._decompressor.needs_input and not (data := self._file.read(PIECE_BYTES)):
                raise EOFError("it ends too early")
            piece = self._decompressor.decompress(data, len(buffer))
        buffer[: len(piece)] = piece
        return len(piece)


def _decompressed(file: BinaryIO) -> Stream | None:
    """The content of a compressed file; None if it is not compressed."""
    beginning = file.peek(6)  # type: ignore[attr-defined]
    if beginning.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=file)
    if beginning.startswith(b"BZh"):
        return bz2.BZ2File(file)
    for signature, container in ((b"\xfd7zXZ\0", lzma.FORMAT_XZ), (b"]\0\0", lzma.FORMAT_ALONE)):
        if beginning.startswith(signature):
            return io.BufferedReader(_LzmaFile(file, container), PIECE_BYTES)
    return None


class _TarStream:
    """The file that tarfile reads: forward-only, with at most `allowance` bytes read per member."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        content = _decompressed(file)
        self._content = None if content is None else _Charged(content, InflationBudget.of_file(file))
        self._position = 0
        self.allowance = MAX_HEADER_BYTES

    def tell(self) -> int:
        return self._position

    def read(self, size: int) -> bytes:
        self.allowance -= size
        if self.allowance < 0:
            raise tarfile.ReadError(f"a header has more than {MAX_HEADER_BYTES >> 20} MiB")
        data = (self._content or self._file).read(size)
        self._position += len(data)
        return data

    def seek(self, position: int) -> int:
        if position < self._position:
            raise tarfile.ReadError("a header refers to what is before it")  # which may loop forever
        if self._content is None:
            self._position = self._file.seek(position)
            return self._position
        while skipped := self._content.read(min(position - self._position, PIECE_BYTES)):
            self._position += len(skipped)
        return self._position


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
