"""Pictures in tar and zip files, read in the order in which they lie there, without unpacking anything to the disk."""

import lzma
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Self

from gateway.client import Picture
from gateway.errors import UserError

ARCHIVE_SUFFIXES = frozenset({".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".zip"})
MAX_MEMBER_BYTES = 1 << 30
"""No service takes a larger file (GATEWAY_MAX_FILE_BYTES), and a small archive may hold a very large one."""


DAMAGED = (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, lzma.LZMAError, struct.error, ValueError)
"""What reading an archive raises where its bytes are not as they were written."""
LOST = "the archive is damaged here, and what follows in it cannot be read"


class ArchiveUnreadable(UserError):
    """What has the name of an archive is none, or its beginning or its list of members is damaged."""


class StrictTarInfo(tarfile.TarInfo):
    """A member's header. One that is damaged is an error, where tarfile takes it for the end of the archive."""

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> Self:
        """The next header; raises ReadError where it is damaged."""
        try:
            return super().fromtarfile(archive)
        except tarfile.HeaderError as exc:
            # These two are the end of an archive, whose last blocks are empty or not there.
            if type(exc).__name__ in {"EOFHeaderError", "EmptyHeaderError"}:
                raise
            raise tarfile.ReadError(str(exc)) from exc


def read_archive(path: Path, wanted: Callable[[str], bool]) -> Iterator[Picture]:
    """The members whose name is wanted, called `ARCHIVE/MEMBER`; raises ArchiveUnreadable.

    What is damaged further inside is an error of the picture there, and ends nothing else.
    """
    try:
        yield from _zip(path, wanted) if path.suffix.lower() == ".zip" else _tar(path, wanted)
    except DAMAGED as exc:
        raise ArchiveUnreadable(f"{path} cannot be read as an archive: {exc}") from exc


def _zip(path: Path, wanted: Callable[[str], bool]) -> Iterator[Picture]:
    # Read from several threads at once, which zipfile allows; open until the last member has been asked for.
    archive = zipfile.ZipFile(path)
    for member in archive.infolist():
        if not member.is_dir() and wanted(member.filename):
            yield Picture(f"{path}/{member.filename}", partial(_zip_member, archive, member))


def _zip_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    if member.file_size > MAX_MEMBER_BYTES:
        raise OSError(f"it has {member.file_size} bytes")
    try:
        return archive.read(member)
    except (*DAMAGED, NotImplementedError, RuntimeError) as exc:  # damaged, compressed otherwise, encrypted
        raise OSError(str(exc)) from exc


def _tar(path: Path, wanted: Callable[[str], bool]) -> Iterator[Picture]:
    # As a stream: a compressed tar cannot be read at any place, so a member is read when it comes by.
    with tarfile.open(path, "r|*", tarinfo=StrictTarInfo) as archive:
        members = iter(archive)
        while True:
            name = str(path)
            try:
                if (member := next(members, None)) is None:
                    return
                picture = None
                if member.isfile() and wanted(member.name):
                    name = f"{path}/{member.name}"
                    picture = Picture(name, _reader(archive, member))
            except DAMAGED as exc:
                yield Picture(name, partial(_refuse, f"{LOST}: {exc}"))
                return
            if picture is not None:
                yield picture
            # The names of those that have gone by are no longer needed, and there may be a million.
            archive.members = []  # type: ignore[attr-defined]  # tarfile's own way, if not in typeshed


def _reader(archive: tarfile.TarFile, member: tarfile.TarInfo) -> Callable[[], bytes]:
    if member.size > MAX_MEMBER_BYTES:
        return partial(_refuse, f"it has {member.size} bytes")
    content = archive.extractfile(member)
    return partial(bytes, b"" if content is None else content.read())


def _refuse(reason: str) -> bytes:
    raise OSError(reason)
