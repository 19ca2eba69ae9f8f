"""Files that several processes use: locked, and replaced as a whole."""

import errno
import fcntl
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

UNWRITABLE = frozenset({errno.EACCES, errno.EROFS})
"""The errno of what is written where nothing may be, as in a container with a read-only file system."""


@contextmanager
def locked(path: Path, *, busy: Callable[[], bool] = lambda: True) -> Iterator[bool]:
    """Hold the lock on a file, which is made where there is none, or on a folder (flock(2), exclusive).

    Where another process holds it, `busy` decides: True waits for it, False goes on without, and the context gives
    False. The lock ends with the context, or with the process. Raises OSError where the path cannot be opened.
    """
    flags = os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT
    handle = os.open(path, flags | os.O_CLOEXEC, 0o666)
    try:
        held = True
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            held = busy()
            if held:
                fcntl.flock(handle, fcntl.LOCK_EX)
        yield held
    finally:
        os.close(handle)


@contextmanager
def locked_where_writable(path: Path, *, busy: Callable[[], bool] = lambda: True) -> Iterator[bool]:
    """See `locked`; True without a lock where nothing can be written, as nobody else changes anything there either."""
    with ExitStack() as stack:
        try:
            held = stack.enter_context(locked(path, busy=busy))
        except OSError as exc:
            if exc.errno not in UNWRITABLE:
                raise
            held = True
        yield held


@contextmanager
def whole_file(target: Path, *, mode: int | None = None, sync: bool = False) -> Iterator[Path]:
    """An empty file beside `target` that takes its place when the block ends without an error, and is gone otherwise.

    Readers see the old file or the new one, never half of one. Its mode is the umask's, or `mode`, and then nobody else
    can read the draft. `sync` writes it to the disk first, so that a power cut spares it too.
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


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """An empty folder that takes the place of `target` when the block ends without an error, and is gone otherwise."""
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as scratch:
        draft = Path(scratch) / target.name
        draft.mkdir()
        yield draft
        if target.exists():
            shutil.rmtree(target)
        draft.rename(target)
