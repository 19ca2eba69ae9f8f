"""Images in tar and zip files, read in place by the standard library's modules; nothing is unpacked to the disk.

fsspec's file system of a tar is not used: it seeks in one shared file, which threads may not, and a compressed tar has
no random access. Members are read in the order of the archive.
"""

import tarfile
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Self

from gateway_client import NamedImage
from gateway_client.bulk.remote import refuse
from gateway_client.files import open_regular, read_most

ARCHIVE_SUFFIXES = frozenset({".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".zip"})


class StrictTarInfo(tarfile.TarInfo):
    """A member's header. A damaged header is an error; tarfile treats it as the end of the archive."""

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> Self:
        """Read the next header; raises ReadError if it is damaged."""
        try:
            member = super().fromtarfile(archive)
        except tarfile.HeaderError as exc:
            # These two mark the end of an archive: its last blocks are empty or missing.
            if type(exc).__name__ in {"EOFHeaderError", "EmptyHeaderError"}:
                raise
            raise tarfile.ReadError(str(exc)) from exc
        if member.size < 0:  # it would lead back, without an end
            raise tarfile.ReadError("a header is invalid")
        return member


def read_archive(path: Path, wants: Callable[[str], bool], max_file_bytes: int) -> Iterator[NamedImage]:
    """Yield the members that are wanted, under the name `ARCHIVE/MEMBER`.

    Damage is an error of the member or of the archive, and affects no other source.
    """
    try:
        open_regular(path).close()
        members = _zip if path.suffix.lower() == ".zip" else _tar
        yield from members(path, wants, max_file_bytes)
    except Exception as exc:  # a damaged archive makes these modules raise errors of any type
        reason = f"the archive is damaged, or cannot be read from here on: {_reason(exc)}"
        yield NamedImage(str(path), partial(refuse, reason))


def _reason(exc: BaseException) -> str:
    return (exc.strerror if isinstance(exc, OSError) else None) or str(exc) or type(exc).__name__


def _zip(path: Path, wants: Callable[[str], bool], max_file_bytes: int) -> Iterator[NamedImage]:
    # It is closed with its last member: threads read them later than they are listed.
    archive = zipfile.ZipFile(path)
    for member in archive.infolist():
        if not member.is_dir() and wants(member.filename):
            yield NamedImage(f"{path}/{member.filename}", partial(_zip_member, archive, member, max_file_bytes))


def _zip_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, max_file_bytes: int) -> bytes:
    """Read at most `max_file_bytes` + 1 bytes of a member; raises OSError if it is damaged."""
    try:
        with archive.open(member) as content:
            return read_most(content, max_file_bytes)
    except Exception as exc:  # as above
        raise OSError(_reason(exc)) from exc


def _tar(path: Path, wants: Callable[[str], bool], max_file_bytes: int) -> Iterator[NamedImage]:
    archive: Any
    with tarfile.open(path, tarinfo=StrictTarInfo) as archive:
        while (member := archive.next()) is not None:
            if not member.isdir() and wants(member.name):
                yield NamedImage(f"{path}/{member.name}", _tar_member(archive, member, max_file_bytes))
            archive.members = []  # as tarfile's documentation suggests: there may be a million


def _tar_member(archive: tarfile.TarFile, member: tarfile.TarInfo, max_file_bytes: int) -> Callable[[], bytes]:
    if member.islnk() or member.issym():
        return partial(refuse, f"it is a link to {member.linkname!r}, and members of a tar are read once, in order")
    content = archive.extractfile(member) if member.isfile() else None
    if content is None:
        return partial(refuse, "it is not a regular file")
    data = read_most(content, max_file_bytes)
    if len(data) < min(member.size, max_file_bytes + 1):
        raise EOFError("unexpected end of data")
    return partial(bytes, data)
