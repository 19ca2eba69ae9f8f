"""Parquet by PyArrow. A column is read in a separate process, since a small file may need any amount of memory.

As a program, this module writes lines of JSON: the names of the columns, then each value of the column whose name it
reads from stdin, then `END`, or an object with an error.
"""

import importlib
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gateway_client.bulk import BulkError
from gateway_client.files import open_regular

MAX_MEMORY_BYTES = 2 * 2**30
"""Maximum memory of the process."""
MAX_VALUE_CHARACTERS = 32_768
"""A longer value is not a path: Linux allows at most 4,096 bytes."""
FREE_ROWS = 1_000_000
"""A file may have this many rows plus one for each of its bytes. Without a limit, a tiny file could have any number
of rows, since rows of a constant or empty column take no bytes."""
END = b'{"end":true}\n'
_BATCH_ROWS = 1024


class ParquetUnavailable(BulkError):
    """PyArrow is not installed."""


def parquet() -> Any:  # noqa: ANN401  # pyarrow has no types
    """The module pyarrow.parquet; raises ParquetUnavailable."""
    return _module("pyarrow.parquet")


def arrow() -> Any:  # noqa: ANN401  # pyarrow has no types
    """The module pyarrow; raises ParquetUnavailable."""
    return _module("pyarrow")


def _module(name: str) -> Any:  # noqa: ANN401
    try:
        return importlib.import_module(name)
    except ImportError as exc:
        raise ParquetUnavailable("Parquet needs PyArrow: pip install pyarrow, or write JSON lines or CSV") from exc


class ColumnReader:
    """Reads a file through the process."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process

    def names(self) -> list[str] | None:
        """The names of the columns; None if the file cannot be read."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        return list(json.loads(line)) if line else None

    def values(self, name: str) -> Iterator[object]:
        """Yield a column's values; raises OSError if the file is damaged or needs too much memory."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(name).encode() + b"\n")
        self._process.stdin.close()
        for line in self._process.stdout:
            if line == END:
                return
            if isinstance(value := json.loads(line), dict):
                raise OSError(value["error"])
            yield value
        raise OSError(f"it is damaged here, or needs more than {MAX_MEMORY_BYTES >> 20} MiB of memory")


@contextmanager
def column_reader(table: Path) -> Iterator[ColumnReader]:
    """Start a process that reads a file; raises ParquetUnavailable and OSError."""
    parquet()
    with open_regular(table) as file:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(file.fileno()), str(MAX_MEMORY_BYTES), str(FREE_ROWS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=(file.fileno(),),
        )
    with process:
        try:
            yield ColumnReader(process)
        finally:
            process.kill()


def _main(handle: int, max_memory_bytes: int, free_rows: int) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (max_memory_bytes, max_memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    out = sys.stdout.buffer
    with parquet().ParquetFile(open(handle, "rb")) as file:
        out.write(json.dumps(file.schema_arrow.names).encode() + b"\n")
        out.flush()
        name = json.loads(sys.stdin.readline())
        left = most = free_rows + os.fstat(handle).st_size
        for batch in file.iter_batches(columns=[name], batch_size=_BATCH_ROWS, use_threads=False):
            for value in batch.column(0)[:left]:
                out.write(json.dumps(_plain(value.as_py())).encode() + b"\n")
            left -= batch.num_rows
            if left < 0:
                error = f"it has more than {most:,} rows, too many for a file of its size"
                out.write(json.dumps({"error": error}).encode() + b"\n")
                return
        out.write(END)
        out.flush()


def _plain(value: object) -> object:
    """Convert a value for JSON; values that cannot be paths are shortened."""
    if value is None or (isinstance(value, str) and len(value) <= MAX_VALUE_CHARACTERS):
        return value
    return [repr(value[:100] if isinstance(value, str | bytes) else value)[:100]]


if __name__ == "__main__":
    _main(*map(int, sys.argv[1:]))
