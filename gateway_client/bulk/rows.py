"""The rows of a run so far, in an SQLite table next to the output, from which a killed run resumes."""

import json
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Generator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from gateway_client.bulk import BulkError
from gateway_client.bulk.outputs import Row, printable
from gateway_client.errors import is_retryable

COMMIT_SECONDS = 1.0
"""After `kill -9` or a power cut, the images of at most this time are classified again."""
_SCHEMA = """
    CREATE TABLE IF NOT EXISTS options (name TEXT PRIMARY KEY, value TEXT NOT NULL);
    CREATE TABLE IF NOT EXISTS rows (path TEXT PRIMARY KEY, error TEXT, row TEXT NOT NULL);
"""


class Rows:
    """One row for each image's name, in the order in which they were added. Threads may share it."""

    def __init__(self, path: Path, options: Mapping[str, Any], *, resume: bool) -> None:
        """Open the table at `path`, or create it; raises BulkError if it has rows of other options."""
        self.path = path
        self._lock = threading.Lock()
        if not resume:
            path.unlink(missing_ok=True)
        if path.exists() and not path.is_file():
            raise BulkError(f"{path} is not a file")
        self._table = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            self._table.executescript(_SCHEMA)
            self._table.execute("BEGIN IMMEDIATE")  # no second run may write the same output
            self.options = self._checked(options)
            for code in self.failed():
                if is_retryable(code):
                    self._table.execute("DELETE FROM rows WHERE error = ?", (code,))
        except (sqlite3.Error, ValueError) as exc:
            self._table.close()
            raise BulkError(f"{path} cannot be used, or another run uses it: {exc}") from exc
        except BulkError:
            self._table.close()
            raise
        self._committed = time.monotonic()

    def _checked(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The options of the first run, with its model and version."""
        before = {name: json.loads(value) for name, value in self._table.execute("SELECT * FROM options")}
        for name, value in given.items():
            if name not in before:
                self._keep(name, value)
            elif value != before[name] and (value is not None or name not in ("model", "version")):
                raise BulkError(
                    f"the rows in {self.path} are from a run {_option(name, before[name])}, and this run is "
                    f"{_option(name, value)}: resume with the same options, or use --overwrite to start again"
                )
        return {**given, **before}

    def _keep(self, name: str, value: object) -> None:
        self._table.execute("INSERT OR REPLACE INTO options VALUES (?, ?)", (name, json.dumps(value)))

    def has(self, name: str) -> bool:
        """Whether an image has a row."""
        with self._lock:
            return self._table.execute("SELECT 1 FROM rows WHERE path = ?", (printable(name),)).fetchone() is not None

    def add(self, row: Row) -> None:
        """Add a row; raises BulkError if its version of the model differs from the earlier rows'."""
        with self._lock:
            for name in ("model", "version"):
                if row["version"] is not None and self.options.get(name) != row[name]:
                    if self.options.get(name) is not None:
                        raise BulkError(
                            f"{row['path']} was answered by {name} {row[name]}, and the rows in {self.path} by "
                            f"{self.options[name]}: a table has one version"
                        )
                    self.options[name] = row[name]
                    self._keep(name, row[name])
            values = row["path"], row["error"], json.dumps(row)
            self._table.execute("INSERT OR REPLACE INTO rows VALUES (?, ?, ?)", values)

    def save(self) -> None:
        """Write the rows to the disk, at most every COMMIT_SECONDS."""
        with self._lock:
            if time.monotonic() - self._committed > COMMIT_SECONDS:
                self._table.execute("COMMIT")
                self._table.execute("BEGIN IMMEDIATE")
                self._committed = time.monotonic()

    def __len__(self) -> int:
        """The number of rows."""
        return int(self._table.execute("SELECT count(*) FROM rows").fetchone()[0])

    def failed(self) -> Counter[str]:
        """The number of images that failed, by error code."""
        found = self._table.execute("SELECT error, count(*) FROM rows WHERE error IS NOT NULL GROUP BY error")
        return Counter(dict(found))

    def __iter__(self) -> Generator[Row, None, None]:
        """All rows."""
        with closing(self._table.execute("SELECT row FROM rows ORDER BY rowid")) as found:
            for (row,) in found:
                yield json.loads(row)

    def close(self, *, delete: bool = False) -> None:
        """Commit, and delete the table if it is no longer needed or has no rows."""
        try:
            delete = delete or not len(self)
            self._table.execute("COMMIT")
        finally:
            self._table.close()
            if delete:
                self.path.unlink(missing_ok=True)


def _option(name: str, value: object) -> str:
    option = f"--{name.replace('_', '-')}"
    if value in (None, False):
        return f"without {option}"
    return f"with {option}" if value is True else f"with {option} {value}"
