"""A file through which the workers of one port share the codes of images that crash processes."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

MOST_BYTES = 4 * 2**20
"""Size from which nothing is written: it takes hours of continuous crashes, and each worker keeps its own record."""


class Notes:
    """Lines in a file shared by processes that trust each other.

    Without a path, or if the file cannot be used, nothing is written or read.
    """

    def __init__(self, path: Path | None) -> None:
        self._file: int | None = None
        if path is not None:
            with contextlib.suppress(OSError):
                self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._read_bytes = 0

    def write(self, kind: str, code: bytes, until: float) -> None:
        """Append a line for all workers, including this one (see `new`); an append of one line is atomic."""
        if self._file is not None and os.fstat(self._file).st_size < MOST_BYTES:
            with contextlib.suppress(OSError):  # such as a full disk
                os.write(self._file, f"{kind} {code.hex()} {until!r}\n".encode())

    def new(self) -> Iterator[tuple[str, bytes, float]]:
        """The lines written by any worker since the last call: kind, code, and the time until which it is valid."""
        if self._file is None or os.fstat(self._file).st_size == self._read_bytes:
            return
        lines = os.pread(self._file, 2 * MOST_BYTES, self._read_bytes)
        self._read_bytes += len(lines)
        for line in lines.splitlines():
            with contextlib.suppress(ValueError):  # a line truncated by a full disk
                kind, code, until = line.decode().split()
                yield kind, bytes.fromhex(code), float(until)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
