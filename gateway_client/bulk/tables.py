"""Tables with a column of paths: CSV, JSON lines, Parquet, or text with one path per line."""

import csv
import json
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterator
from functools import partial
from io import TextIOWrapper
from pathlib import Path

from gateway_client.bulk import BulkError
from gateway_client.bulk.outputs import parquet
from gateway_client.bulk.remote import is_url
from gateway_client.csv_cells import restored
from gateway_client.files import open_regular
from gateway_client.images import is_image_name
from gateway_client.visible import visible

TABLE_SUFFIXES = frozenset({".csv", ".jsonl", ".ndjson", ".parquet", ".txt"})
COLUMNS = ("path", "file", "filename", "image", "url")
"""Names that identify the column of paths if `--column` is not set."""
MAX_LINE_BYTES = 2**20
"""Maximum bytes of one line of a table or a list; a longer line ends its table."""
_SHOWN_CHARACTERS = 200


def read_paths(table: Path, column: str | None = None) -> Iterator[str | OSError]:
    """Yield the paths of a table, relative to its folder, or the error of a row; raises BulkError for its columns."""
    kinds = {".csv": _csv, ".parquet": _parquet, ".txt": _lines}
    rows = kinds.get(table.suffix.lower(), _json_lines)(table, column)
    try:
        for value in rows:
            if isinstance(value, OSError):
                yield value
            elif not isinstance(value, str) or not value:
                yield OSError("this row of the table has no path")
            else:
                yield value if is_url(value) else str(table.parent / value)
    except (OSError, ValueError, csv.Error) as exc:  # pyarrow's errors are ValueErrors
        yield OSError(f"{table} cannot be read from here on: {exc}")


def _column(table: Path, names: list[str], column: str | None) -> str:
    """The column with the paths; raises BulkError."""
    listed = visible(", ".join(names))[:_SHOWN_CHARACTERS]
    if column is not None:
        if column not in names:
            raise BulkError(f"{visible(table)} has no column {column!r}; its columns are {listed}")
        return column
    for known in COLUMNS:
        if known in names:
            return known
    if any(is_url(name) or is_image_name(name) for name in names):
        raise BulkError(
            f"{visible(table)} has no header, but a first line with {listed}: write one above it, such as path"
        )
    if len(names) == 1 and not any(separator in names[0] for separator in ";\t|"):
        return names[0]
    raise BulkError(
        f"which column of {visible(table)} has the paths? Separate columns by commas, and name it with --column: "
        f"{listed}"
    )


def _bounded_lines(table: Path) -> Iterator[str]:
    """Yield the lines of a file; names may not be valid UTF-8. Raises OSError at a line beyond MAX_LINE_BYTES."""
    with open_regular(table) as file, TextIOWrapper(file, "utf-8-sig", "surrogateescape", newline="") as text:
        if file.peek(2)[:2] in (BOM_UTF16_LE, BOM_UTF16_BE):  # type: ignore[attr-defined]
            raise OSError("it is UTF-16, not UTF-8 text: save it as UTF-8")
        for line in iter(partial(text.readline, MAX_LINE_BYTES + 1), ""):
            if len(line) > MAX_LINE_BYTES:
                raise OSError(f"a line has more than {MAX_LINE_BYTES >> 20} MiB")
            yield line


def _csv(table: Path, column: str | None) -> Iterator[object]:
    reader = csv.DictReader(_bounded_lines(table))
    name = _column(table, list(reader.fieldnames or ()), column) if reader.fieldnames else ""
    for row in reader:
        yield restored(row[name] or "")


def _lines(table: Path, column: str | None) -> Iterator[object]:  # noqa: ARG001  # a list has no columns
    for line in _bounded_lines(table):
        if path := line.strip("\r\n"):
            yield path


def _json_lines(table: Path, column: str | None) -> Iterator[object]:
    for number, line in enumerate(_bounded_lines(table), 1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            yield OSError(f"line {number} of {visible(table)} is not JSON in UTF-8")
            continue
        if isinstance(row, dict):
            column = column or _column(table, list(row), None)
            row = row.get(column)
        yield row


def _parquet(table: Path, column: str | None) -> Iterator[object]:
    module = parquet()
    with open_regular(table) as file, module.ParquetFile(file) as source:
        name = _column(table, source.schema_arrow.names, column)
        for batch in source.iter_batches(columns=[name], batch_size=1024, use_threads=False):
            yield from batch.column(0).to_pylist()
