"""The journal: the rows so far, as JSON lines in `OUT.part`, from which a killed run resumes.

A row is written with its line break in one piece and is never changed. After `kill -9` at most the last line is
incomplete; `resume` drops it, and the images of all other rows are not sent again.
"""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO

from gateway_client import BY_CODE, NamedImage
from gateway_client.bulk import BulkError
from gateway_client.bulk.rows import EMBEDDING, Row, printable
from gateway_client.bulk.run_options import OPTIONS, Options, RunOptions
from gateway_client.documents import Malformed, number, objects, optional_integer, optional_text, parsed, text
from gateway_client.files import open_regular, whole_file

MAX_ROW_BYTES = 64 * 2**20
"""Maximum bytes of one row, with its frames or its embedding."""
_MAX_INTEGER = 2**31


class JournalUnreadable(BulkError):
    """`OUT.part` was not written by this command."""


def journal_of(out: Path) -> Path:
    """The path of an output's journal."""
    return out.with_name(f"{out.name}.part")


class Journal:
    """Rows on the disk, in the order in which they were written."""

    def __init__(self, path: Path, *, embeddings: bool = False, options: Options | None = None) -> None:
        self.path = path
        self._options = RunOptions(path, options or {})
        self._embeddings = embeddings
        self.done: Counter[bytes] = Counter()
        """Number of rows of each image, by a digest of its name: a million names would take too much memory."""
        self.rows = 0
        self.dropped = 0
        """Rows that `resume` dropped, since their image has another row."""
        self.torn = False
        """Whether the last line is incomplete, as after `kill -9`; `resume` drops it."""
        self.failed: Counter[str] = Counter()
        """Number of failed images, by error code."""
        self._file: BinaryIO | None = None

    def begin(self) -> None:
        """Start with no rows in a new file; an existing file, FIFO or link of this name is removed, not written to."""
        self.path.unlink(missing_ok=True)
        self._file = self.path.open("xb")

    def resume(self) -> None:
        """Keep the existing rows, without an incomplete last line and without rows of temporary errors.

        Raises JournalUnreadable, or OptionsDiffer if the rows come from other options.
        """
        first: dict[bytes, bytes] = {}
        conflicting = set()
        for row in self.read():
            row.pop(OPTIONS, None)
            name, content = _digest(row["path"]), _digest(json.dumps(row, sort_keys=True))
            if first.setdefault(name, content) != content:
                conflicting.add(name)
        with whole_file(self.path, sync=True) as kept, kept.open("wb") as file:
            for row in self.checked():
                if row["error"] is None or not _temporary(row["error"]):
                    # Conflicting rows cannot be resolved: all are dropped, and the image is classified again.
                    if (name := _digest(row["path"])) in conflicting or name in self.done:
                        self.dropped += 1
                        continue
                    row["path"] = printable(row["path"])  # an older version wrote surrogates
                    row.pop(OPTIONS, None)
                    file.write(self._next_line(row))
                    self.done[_digest(row["path"])] += 1
        self._file = self.path.open("ab")

    def checked(self) -> Iterator[Row]:
        """Yield the rows on the disk; raises OptionsDiffer at a row that shows other options."""
        for row in self.read():
            self._options.check(row)
            yield row

    def read(self) -> Iterator[Row]:
        """Yield the rows on the disk; raises JournalUnreadable."""
        try:
            opened = open_regular(self.path)
        except OSError as exc:
            raise JournalUnreadable(f"{self.path} cannot be read: {exc.strerror or exc}") from exc
        with opened as file:
            for number, line in enumerate(iter(partial(file.readline, MAX_ROW_BYTES + 1), b""), 1):
                if len(line) > MAX_ROW_BYTES:
                    raise JournalUnreadable(f"line {number} of {self.path} has more than {MAX_ROW_BYTES >> 20} MiB")
                if not line.endswith(b"\n"):
                    self.torn = True
                    return
                row = _parsed(line)
                if row is None:
                    raise JournalUnreadable(f"line {number} of {self.path} is not a row that `gateway classify` wrote")
                if (EMBEDDING in row) != self._embeddings:
                    now, then = ("with", "without")[:: 1 if self._embeddings else -1]
                    raise JournalUnreadable(
                        f"{self.path} was written {then} --embeddings, not {now}: use --overwrite to start again"
                    )
                yield row

    def left(self, images: Iterable[NamedImage]) -> Iterator[NamedImage]:
        """Yield the images that have no row yet."""
        done = self.done
        for image in images:
            if done:
                digest = _digest(image.name)
                if digest in done:
                    done[digest] -= 1
                    if not done[digest]:
                        del done[digest]
                    continue
            yield image

    @property
    def foreign(self) -> int:
        """Number of rows of images that are not among the sources; valid once `left` is exhausted."""
        return self.done.total()

    def write(self, rows: Iterable[Row]) -> None:
        """Append rows; on return they are flushed to the operating system and survive this process."""
        assert self._file is not None
        self._file.write(b"".join(map(self._next_line, rows)))
        self._file.flush()

    def close(self) -> None:
        """Write everything to the disk."""
        file, self._file = self._file, None
        if file is not None:
            with file:
                file.flush()
                os.fsync(file.fileno())

    def abandon(self) -> None:
        """Close the journal: a file with rows stays, an empty file is deleted."""
        with suppress(OSError):  # the disk may still be full
            self.close()
        if not self.rows:
            self.path.unlink(missing_ok=True)

    def finish(self, out: Path, convert: Callable[[Iterator[Row], Path], None] | None) -> None:
        """Create the output atomically; `convert` writes formats other than JSON lines."""
        self.close()
        if convert is None:
            self.path.replace(out)
        else:
            with whole_file(out) as draft:
                convert(self.read(), draft)
            self.path.unlink()

    def _next_line(self, row: Row) -> bytes:
        """Count a row and return its line; the first one records the run's options."""
        self.rows += 1
        if row["error"] is not None:
            self.failed[row["error"]] += 1
        return _line(row if self.rows > 1 else self._options.recorded_in(row))


def _temporary(code: str) -> bool:
    """Whether an image with this error may succeed when it is sent again."""
    kind = BY_CODE.get(code)
    return kind.retryable if kind is not None else code == "connection_lost" or code.startswith("http_")


def _parsed(line: bytes) -> Row | None:
    """Parse a row; None if a member has a type or range that some output format does not allow."""
    try:
        row = parsed(line)
        text(row, "path")
        for name in ("error", "message", "warning", "status", "label", "model", "version"):
            optional_text(row, name)
        for name in ("width", "height"):
            _integer(row, name)
        for prediction in (row, *objects(row, "predictions")):
            optional_text(prediction, "label")
            _integer(prediction, "class_id")
            _number(prediction, "score")
        for name in (EMBEDDING, "frames"):
            if not isinstance(row.get(name), list | None):
                return None
        if not isinstance(row.get(OPTIONS), dict | None):
            return None
        for value in row.get(EMBEDDING) or ():
            number({"value": value}, "value")
    except Malformed:
        return None
    return row if "error" in row else None


def _integer(row: Row, name: str) -> None:
    if (optional_integer(row, name) or 0) >= _MAX_INTEGER:
        raise Malformed(f"{name!r} is too large")


def _number(row: Row, name: str) -> None:
    if row.get(name) is not None:
        number(row, name)


def _line(row: Row) -> bytes:
    return json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode(errors="replace") + b"\n"


def _digest(name: str) -> bytes:
    return hashlib.blake2b(printable(name).encode(), digest_size=16).digest()
