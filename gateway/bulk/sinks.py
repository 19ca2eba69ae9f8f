"""The formats of the output, chosen by its file name extension."""

import csv
import json
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from gateway.bulk.parquet import arrow, parquet
from gateway.bulk.rows import COLUMNS, Row
from gateway.errors import UserError

ROW_GROUP = 10_000
Convert = Callable[[Iterator[Row], Path], None]


class FormatUnknown(UserError):
    """The output's file name extension is unknown."""


def converter(out: Path) -> Convert | None:
    """What writes rows in the format of a file, None for JSON lines; raises FormatUnknown and ParquetUnavailable."""
    match out.suffix.lower():
        case ".jsonl" | ".ndjson":
            return None
        case ".csv":
            return write_csv
        case ".parquet":
            parquet()  # better missing now than after an hour's work
            return write_parquet
    raise FormatUnknown(f"{out.name!r}: the output's ending must be .jsonl, .csv or .parquet")


def write_csv(rows: Iterator[Row], path: Path) -> None:
    """Rows as CSV (RFC 4180); `predictions` are JSON."""
    with path.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file:
        writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore")
        writer.writeheader()
        for row in rows:
            writer.writerow({**row, "predictions": json.dumps(row["predictions"], ensure_ascii=False)})


def write_parquet(rows: Iterator[Row], path: Path) -> None:
    """Rows as Parquet, ROW_GROUP of them at a time in memory."""
    pa = arrow()
    prediction = pa.struct([("label", pa.string()), ("class_id", pa.int32()), ("score", pa.float32())])
    types = {
        "class_id": pa.int32(),
        "score": pa.float32(),
        "predictions": pa.list_(prediction),
        "width": pa.int32(),
        "height": pa.int32(),
    }
    schema = pa.schema([(name, types.get(name, pa.string())) for name in COLUMNS])
    with parquet().ParquetWriter(path, schema) as writer:
        while group := list(islice(rows, ROW_GROUP)):
            writer.write_table(pa.Table.from_pylist(list(map(_printable, group)), schema))


def _printable(row: Row) -> Row:
    # A file's name may hold bytes that are no UTF-8, which Parquet's strings cannot.
    return {**row, "path": row["path"].encode(errors="replace").decode()}
