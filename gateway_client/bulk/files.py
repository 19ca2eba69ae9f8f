"""Output files that are replaced as a whole."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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
