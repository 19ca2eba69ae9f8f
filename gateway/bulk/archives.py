"""Pictures in tar and zip files, read in the order in which they lie there, without unpacking anything to the disk."""

import tarfile
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from gateway.client import Picture
from gateway.errors import UserError

ARCHIVE_SUFFIXES = frozenset({".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".zip"})
MAX_MEMBER_BYTES = 1 << 30
"""No service takes a larger file (GATEWAY_MAX_FILE_BYTES), and a small archive may hold a very large one."""


class ArchiveUnreadable(UserError):
    """What has the name of an archive is none, or is damaged."""


def read_archive(path: Path, wanted: Callable[[str], bool]) -> Iterator[Picture]:
    """The members whose name is wanted, called `ARCHIVE/MEMBER`; raises ArchiveUnreadable."""
    try:
        yield from _zip(path, wanted) if path.suffix.lower() == ".zip" else _tar(path, wanted)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError) as exc:
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
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError) as exc:  # damaged, compressed otherwise, encrypted
        raise OSError(str(exc)) from exc


def _tar(path: Path, wanted: Callable[[str], bool]) -> Iterator[Picture]:
    # As a stream: a compressed tar cannot be read at any place, so a member is read when it comes by.
    with tarfile.open(path, "r|*") as archive:
        for member in archive:
            if member.isfile() and wanted(member.name):
                if member.size > MAX_MEMBER_BYTES:
                    yield Picture(f"{path}/{member.name}", partial(_refuse, member.size))
                    continue
                content = archive.extractfile(member)
                data = b"" if content is None else content.read()
                yield Picture(f"{path}/{member.name}", partial(bytes, data))
            # The names of those that have gone by are no longer needed, and there may be a million.
            archive.members = []  # type: ignore[attr-defined]  # tarfile's own way, if not in typeshed


def _refuse(size: int) -> bytes:
    raise OSError(f"it has {size} bytes")
