"""Files that several processes use: locked, and replaced as a whole."""

import fcntl
import hashlib
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path


@contextmanager
def locked(path: Path, *, busy: Callable[[], bool] = lambda: True) -> Iterator[bool]:
    """Hold the lock on a folder, or on a file, which is created if it is missing (flock(2), exclusive).

    If another process holds the lock, `busy` is called: if it returns True, this call waits for the lock; if False,
    the block runs without the lock, and the context yields False. The lock is released when the block or the process
    ends. Raises OSError if the path cannot be opened.
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
def whole_file(target: Path, *, mode: int | None = None, sync: bool = False) -> Iterator[Path]:
    """Yield an empty file that replaces `target` if the block ends without an error, and is deleted otherwise.

    Readers see the old file or the new one, never a part. The mode is `mode`, or set by the umask; with `mode`, only
    the owner can read the draft. With `sync` the file is flushed to disk first, so that it survives a power failure.
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


def lock_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """A folder of this user alone: no other user can hold a lock in it or replace it with a link."""
    runtime = environment.get("XDG_RUNTIME_DIR")
    if runtime:
        return Path(runtime) / "triton-image-gateway"
    cache = environment.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "triton-image-gateway" / "locks"


@contextmanager
def machine_lock(address: str, folder: Path | None = None) -> Iterator[bool]:
    """Try to take the lock of the Triton at an address; yields whether this process holds it until the context ends.

    Without a writable folder, as in a container with a read-only file system, every process gets the lock: gateways
    then avoid each other as they do on different machines.
    """
    name = hashlib.sha256(address.encode()).hexdigest()[:16]
    with ExitStack() as stack:
        try:
            folder = folder or lock_folder()
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            held = stack.enter_context(locked(folder / f"heal-{name}.lock", busy=lambda: False))
        except (OSError, RuntimeError):  # RuntimeError: the user has no home
            held = True
        yield held
