"""Tables with a column of paths: CSV, JSON lines, Parquet, or text with nothing but paths."""

import csv
import json
import os
from collections.abc import Iterator
from pathlib import Path

from gateway.bulk.parquet import parquet
from gateway.bulk.remote import is_url
from gateway.errors import UserError
from gateway.ingest.image_info import SUFFIXES

TABLE_SUFFIXES = frozenset({".csv", ".jsonl", ".ndjson", ".parquet", ".txt"})
COLUMNS = ("path", "file", "filename", "image", "url")
"""The names by which a column of paths is known, where none is given."""


class TableUnreadable(UserError):
    """The table has no column of paths, or is not a table."""


def read_paths(table: Path, column: str | None = None) -> Iterator[str | None]:
    """The paths of a table, row by row, None where a row has none; relative ones are taken from the table's folder.

    Raises TableUnreadable.
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
    try:
        for number, value in enumerate(rows, 1):
            if value is None or value == "":
                yield None
            elif not isinstance(value, str):
                raise TableUnreadable(f"row {number} of {table} has {value!r} for a path: name the column by --column")
            else:
                yield value if is_url(value) else str(table.parent / value)
    except UnicodeDecodeError as exc:
        raise TableUnreadable(f"{table} is not a table in UTF-8: {exc.reason}") from exc


def _column(table: Path, names: list[str], column: str | None) -> str:
    if column is not None:
        if column not in names:
            raise TableUnreadable(f"{table} has no column {column!r}; its columns are {', '.join(names)}")
        return column
    for known in COLUMNS:
        if known in names:
            return known
    if any(is_url(name) or os.path.splitext(name)[1].lower() in SUFFIXES for name in names):  # noqa: PTH122  # a cell
        raise TableUnreadable(
            f"{table} has no header, but a first line with {', '.join(names)}: write one above it, such as path"
        )
    if len(names) == 1:
        if found := next((sign for sign in ";\t|" if sign in names[0]), None):
            raise TableUnreadable(f"{table} has one column, {names[0]!r}: separate columns by commas, not by {found!r}")
        return names[0]
    raise TableUnreadable(f"which column of {table} has the paths? Name it with --column: {', '.join(names)}")


def _csv(table: Path, column: str | None) -> Iterator[object]:
    with table.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        name = _column(table, list(reader.fieldnames or []), column)
        for row in reader:
            yield row[name]


def _lines(table: Path) -> Iterator[object]:
    with table.open("rb") as file:  # names may be other bytes than UTF-8
        for line in file:
            if path := os.fsdecode(line).strip("\r\n"):
                yield path


def _jsonl(table: Path, column: str | None) -> Iterator[object]:
    name = column
    with table.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                row = json.loads(line)
            except ValueError as exc:
                raise TableUnreadable(f"line {number} of {table} is not JSON") from exc
            if isinstance(row, str):
                yield row
                continue
            if not isinstance(row, dict):
                raise TableUnreadable(f"line {number} of {table} is neither an object nor a string")
            name = name or _column(table, list(row), None)
            if name not in row:
                raise TableUnreadable(f"line {number} of {table} has no member {name!r}")
            yield row[name]


def _parquet(table: Path, column: str | None) -> Iterator[object]:
    with parquet().ParquetFile(table) as file:
        name = _column(table, file.schema_arrow.names, column)
        for batch in file.iter_batches(columns=[name], batch_size=4096):
            yield from batch.column(0).to_pylist()
