"""A lock for each Triton: one gateway process of a user on a machine reloads its models at a time."""

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from gateway.files import locked


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
    then avoid each other as they do on different machines, see gateway.triton.health.reloading.
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
