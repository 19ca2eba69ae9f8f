"""Tables with a column of paths: CSV, JSON lines, Parquet, or text with one path per line."""

import csv
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from gateway_client.bulk import BulkError
from gateway_client.bulk.parquet import column_reader
from gateway_client.bulk.remote import is_url
from gateway_client.bulk.rows import printable
from gateway_client.csv_cells import restored
from gateway_client.files import open_regular
from gateway_client.images import is_image_name
from gateway_client.visible import visible

NAMES_SHOWN = 20
CHARACTERS_SHOWN = 200
TABLE_SUFFIXES = frozenset({".csv", ".jsonl", ".ndjson", ".parquet", ".txt"})
COLUMNS = ("path", "file", "filename", "image", "url")
"""Names that identify the column of paths if `--column` is not set."""
MAX_LINE_BYTES = 2**20
"""Maximum bytes of one line of a table or a list; a longer line is an error."""
MAX_SKIPPED_BYTES = 256 * 2**20
"""A line longer than this ends its table."""


class TableUnreadable(BulkError):
    """The table has no column of paths, or is not a table."""


@dataclass(frozen=True, slots=True)
class NoPath:
    """A row of a table without a readable path, and the reason."""

    reason: str


EMPTY = NoPath("this row of the table has no path")
TOO_LONG = NoPath(f"this line of the table has more than {MAX_LINE_BYTES >> 20} MiB")


def read_paths(table: Path, column: str | None = None) -> Iterator[str | NoPath]:
    """Yield the paths of a table; relative paths start at the table's folder.

    Raises TableUnreadable and OSError before the first row; a damaged row after it is a NoPath.
    """
    match table.suffix.lower():
        case ".csv":
            rows = _csv(table, column)
        case ".parquet":
            rows = _parquet(table, column)
        case ".txt":
            rows = _lines(table)
        case _:
            rows = _jsonl(table, column)
    for number, value in enumerate(rows, 1):
        found = EMPTY if value is None or value == "" else value
        if not isinstance(found, str | NoPath):
            row = f"row {number} of {visible(table)}"
            found = NoPath(f"{row} has {_short(found)} as its path: name the column by --column")
        if number == 1 and isinstance(found, NoPath) and found is not EMPTY:
            raise TableUnreadable(found.reason)
        yield str(table.parent / found) if isinstance(found, str) and not is_url(found) else found


def bounded_lines(file: BinaryIO) -> Iterator[bytes | None]:
    """Yield the lines of a file, None for each that exceeds MAX_LINE_BYTES; stops at one beyond MAX_SKIPPED_BYTES."""
    while line := file.readline(MAX_LINE_BYTES + 1):
        if len(line) <= MAX_LINE_BYTES:
            yield line
            continue
        yield None
        skipped = 0
        while line and not line.endswith(b"\n"):
            line = file.readline(MAX_LINE_BYTES)
            skipped += len(line)
            if skipped > MAX_SKIPPED_BYTES:
                return


def _column(table: Path, names: list[str], column: str | None) -> str:
    if column is not None:
        if column not in names:
            raise TableUnreadable(f"{visible(table)} has no column {column!r}; its columns are {_listed(names)}")
        return column
    for known in COLUMNS:
        if known in names:
            return known
    if any(is_url(name) or is_image_name(name) for name in names):
        raise TableUnreadable(
            f"{visible(table)} has no header, but a first line with {_listed(names)}: write one above it, such as path"
        )
    if len(names) == 1:
        if found := next((separator for separator in ";\t|" if separator in names[0]), None):
            raise TableUnreadable(
                f"{visible(table)} has one column, {_short(names[0])}: separate columns by commas, not by {found!r}"
            )
        return names[0]
    raise TableUnreadable(f"which column of {visible(table)} has the paths? Name it with --column: {_listed(names)}")


def _listed(names: list[str]) -> str:
    text = visible(", ".join(names[:NAMES_SHOWN]))[:CHARACTERS_SHOWN]
    return f"{text}, …" if len(names) > NAMES_SHOWN else text


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= CHARACTERS_SHOWN else f"{text[:CHARACTERS_SHOWN]}…"


def _csv(table: Path, column: str | None) -> Iterator[object]:
    too_long = 0

    def lines() -> Iterator[str]:
        nonlocal too_long
        for number, line in enumerate(bounded_lines(file)):
            too_long += line is None
            # A name may not be valid UTF-8. The first line may begin with a byte order mark.
            yield (line or b"\n").decode("utf-8" if number else "utf-8-sig", "surrogateescape")

    with open_regular(table) as file:
        reader = csv.reader(lines())
        position: int | None = None
        while True:
            row: list[str] | None = None
            try:
                row = next(reader, None)
            except csv.Error as exc:
                yield NoPath(f"line {reader.line_num} of {visible(table)} is not CSV: {exc}")
                continue
            while too_long:
                too_long -= 1
                yield TOO_LONG
            if row is None:
                return
            if row and position is None:
                _require_utf_8(table, row)
                position = row.index(_column(table, row, column))
            elif row and position is not None:
                yield restored(row[position]) if position < len(row) else None


def _require_utf_8(table: Path, names: list[str]) -> None:
    if any("\0" in name or printable(name) != name for name in names):
        raise TableUnreadable(f"{visible(table)} is not a table in UTF-8: save it as UTF-8")


def _lines(table: Path) -> Iterator[object]:
    with open_regular(table) as file:  # names may not be valid UTF-8
        for line in bounded_lines(file):
            if line is None:
                yield TOO_LONG
            elif path := os.fsdecode(line).strip("\r\n"):
                yield path


def _jsonl(table: Path, column: str | None) -> Iterator[object]:
    name = column
    with open_regular(table) as file:
        for number, line in enumerate(bounded_lines(file), 1):
            where = f"line {number} of {visible(table)}"
            if line is None:
                yield TOO_LONG
                continue
            try:
                row = json.loads(line.removeprefix(b"\xef\xbb\xbf").decode())
            except (ValueError, RecursionError):
                yield NoPath(f"{where} is not JSON in UTF-8")
                continue
            if isinstance(row, dict):
                name = name or _column(table, list(row), None)
                yield row[name] if name in row else NoPath(f"{where} has no member {name!r}")
            else:
                yield row if isinstance(row, str) else NoPath(f"{where} is neither an object nor a string")


def _parquet(table: Path, column: str | None) -> Iterator[object]:
    with column_reader(table) as reader:
        if (names := reader.names()) is None:
            raise TableUnreadable(f"{visible(table)} cannot be read as a Parquet file")
        try:
            yield from reader.values(_column(table, names, column))
        except OSError as exc:
            yield NoPath(f"{visible(table)}: {exc}")
