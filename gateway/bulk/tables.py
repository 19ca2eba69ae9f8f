"""Tables with a column of paths: CSV, JSON lines, Parquet."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path

from gateway.bulk.parquet import parquet
from gateway.bulk.remote import is_url
from gateway.errors import UserError

TABLE_SUFFIXES = frozenset({".csv", ".jsonl", ".ndjson", ".parquet"})
COLUMNS = ("path", "file", "filename", "image", "url")
"""The names by which a column of paths is known, where none is given."""


class TableUnreadable(UserError):
    """The table has no column of paths, or is not a table."""


def read_paths(table: Path, column: str | None = None) -> Iterator[str]:
    """The paths of a table, row by row; relative ones are taken from the table's folder. Raises TableUnreadable."""
    kind = table.suffix.lower()
    rows = (
        _csv(table, column)
        if kind == ".csv"
        else _parquet(table, column)
        if kind == ".parquet"
        else _jsonl(table, column)
    )
    for value in rows:
        if not isinstance(value, str) or not value:
            raise TableUnreadable(f"{table} has a row whose path is {value!r}")
        yield value if is_url(value) else str(table.parent / value)


def _column(table: Path, names: list[str], column: str | None) -> str:
    if column is not None:
        if column not in names:
            raise TableUnreadable(f"{table} has no column {column!r}; its columns are {', '.join(names)}")
        return column
    for known in COLUMNS:
        if known in names:
            return known
    if len(names) == 1:
        return names[0]
    raise TableUnreadable(f"which column of {table} has the paths? Name it with --column: {', '.join(names)}")


def _csv(table: Path, column: str | None) -> Iterator[object]:
    with table.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        name = _column(table, list(reader.fieldnames or []), column)
        for row in reader:
            yield row[name]


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
