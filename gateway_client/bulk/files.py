"""Output files that are replaced atomically."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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
