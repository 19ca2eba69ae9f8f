"""Files: files of unknown origin are opened without blocking and read up to a limit; output is replaced atomically."""

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol

DEFAULT_FILE_BYTES = 20 * 2**20
"""Maximum bytes read from a file if the service's `max_file_bytes` is unknown."""
MAX_FILE_BYTES = 2**30
"""Maximum bytes read from a file: no gateway accepts a larger one."""
PIECE_BYTES = 256 * 1024
_FLAGS = sum(getattr(os, name, 0) for name in ("O_RDONLY", "O_NONBLOCK", "O_CLOEXEC", "O_NOCTTY", "O_BINARY"))
_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}


class Stream(Protocol):
    """A readable source of bytes."""

    def read(self, size: int, /) -> bytes:
        """Read at most `size` bytes; b"" at the end."""


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file for reading; raises OSError for anything else, and never waits for a writer or a device."""
    try:
        _require_regular(os.stat(path))  # noqa: PTH116  # str or bytes names; before the file is opened, since opening a device or a FIFO has side effects
        handle = os.open(path, _FLAGS)
    except ValueError as exc:  # a NUL, or a lone surrogate that represents no byte
        raise OSError(f"no file can have this name: {exc}") from exc
    try:
        _require_regular(os.fstat(handle))
        return open(handle, "rb")  # noqa: PTH123  # a descriptor
    except BaseException:
        os.close(handle)
        raise


def is_hidden(name: str) -> bool:
    """Whether listings skip a path: hidden files and folders, and macOS's __MACOSX."""
    return any((part.startswith(".") and part not in (".", "..")) or part == "__MACOSX" for part in name.split("/"))


def files_below(folder: Path) -> list[Path]:
    """The regular files in a folder and its subfolders, in order, without hidden ones."""
    below = (path for path in folder.rglob("*") if not is_hidden(path.relative_to(folder).as_posix()))
    return sorted(path for path in below if path.is_file())


def read_file(path: str | os.PathLike[str], max_bytes: int = DEFAULT_FILE_BYTES) -> bytes:
    """Read a file, at most `max_bytes` + 1 bytes: the extra byte shows that it is too large; raises OSError."""
    with open_regular(path) as file:
        return read_most(file, max_bytes)


def read_most(stream: Stream, max_bytes: int) -> bytes:
    """Read at most `max_bytes` + 1 bytes of a stream. Memory grows as bytes arrive, not by a declared size."""
    pieces, left = [], max_bytes + 1
    while left > 0 and (piece := stream.read(min(left, PIECE_BYTES))):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


@contextmanager
def whole_file(target: Path, *, mode: int | None = None, sync: bool = False) -> Iterator[Path]:
    """Yield an empty draft file that replaces `target` when the block ends without an error, and is deleted otherwise.

    Readers see the old file or the new one, never a part. The mode follows the umask, or is `mode`; then only the owner
    can read the draft. With `sync` the data is on the disk before the replacement, so that it survives a power cut.
    """
    draft = target.with_name(f".{target.name}-{secrets.token_hex(4)}")
    os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666 if mode is None else 0o600))
    try:
        yield draft
        if sync:
            with draft.open("rb") as file:
                os.fsync(file.fileno())
        if mode is not None:
            draft.chmod(mode)
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


def _require_regular(found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise OSError(f"it is {_KINDS.get(stat.S_IFMT(found.st_mode), 'a special file')}, not a regular file")
