"""Only one gateway of a user on a machine heals a Triton at a time."""

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from gateway.files import locked


def lock_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """A folder that belongs to this user alone: nobody else can hold a lock in it, or put a link in its place."""
    runtime = environment.get("XDG_RUNTIME_DIR")
    if runtime:
        return Path(runtime) / "triton-image-gateway"
    cache = environment.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "triton-image-gateway" / "locks"


@contextmanager
def machine_lock(address: str, folder: Path | None = None) -> Iterator[bool]:
    """Whether it is this process's turn to heal the Triton at an address; it ends with the context, or the process.

    Where no folder can be written, as in a container with a read-only file system, everybody has a turn: what keeps
    gateways on different machines apart then does so here as well, see gateway.triton.health.reloading.
    """
    name = hashlib.sha256(address.encode()).hexdigest()[:16]
    with ExitStack() as stack:
        try:
            folder = folder or lock_folder()
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            mine = stack.enter_context(locked(folder / f"heal-{name}.lock", busy=lambda: False))
        except (OSError, RuntimeError):  # RuntimeError: the user has no home
            mine = True
        yield mine
