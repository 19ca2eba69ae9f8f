"""What the workers of one port tell each other about images that end processes: a file that each of them appends to."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

MOST_BYTES = 4 * 2**20
"""A file that large is left alone: it takes hours of deaths without a pause, and each worker still learns by itself."""


class Notes:
    """Lines in a file that is shared by processes which trust each other.

    Without a path, or where the file cannot be used, nothing is written and nothing is read.
    """

    def __init__(self, path: Path | None) -> None:
        self._file: int | None = None
        if path is not None:
            with contextlib.suppress(OSError):
                self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._read_bytes = 0

    def write(self, kind: str, code: bytes, until: float) -> None:
        """Tell the others, and find it again in `new`; an append of one line is whole or not there at all."""
        if self._file is not None and os.fstat(self._file).st_size < MOST_BYTES:
            with contextlib.suppress(OSError):  # such as a full disk
                os.write(self._file, f"{kind} {code.hex()} {until!r}\n".encode())

    def new(self) -> Iterator[tuple[str, bytes, float]]:
        """What has been written since the last time, by whomever: kind, code, and until when it holds."""
        if self._file is None or os.fstat(self._file).st_size == self._read_bytes:
            return
        lines = os.pread(self._file, 2 * MOST_BYTES, self._read_bytes)
        self._read_bytes += len(lines)
        for line in lines.splitlines():
            with contextlib.suppress(ValueError):  # half a line, behind which the disk was full
                kind, code, until = line.decode().split()
                yield kind, bytes.fromhex(code), float(until)

    def close(self) -> None:
        """Give the file back."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
