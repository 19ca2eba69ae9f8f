"""The formats of the output, chosen by its file name extension."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path

from gateway_client.bulk import BulkError
from gateway_client.bulk.parquet import arrow, parquet
from gateway_client.bulk.rows import EMBEDDING, Row, columns
from gateway_client.csv_cells import csv_line

ROW_GROUP = 10_000
EMBEDDING_GROUP = 1_000
Convert = Callable[[Iterator[Row], Path], None]


class FormatUnknown(BulkError):
    """The output's file name extension is unknown."""


def converter(out: Path, *, embeddings: bool = False) -> Convert | None:
    """The writer for an output's suffix, None for JSON lines; raises FormatUnknown and ParquetUnavailable.

    With `embeddings` the rows have embeddings.
    """
    match out.suffix.lower():
        case ".jsonl" | ".ndjson":
            return None
        case ".csv":
            return partial(write_csv, embeddings=embeddings)
        case ".parquet":
            parquet()  # report a missing PyArrow before the run, not after it
            return partial(write_parquet, embeddings=embeddings)
    raise FormatUnknown(f"{out.name!r}: the output's suffix must be .jsonl, .csv or .parquet")


def write_csv(rows: Iterator[Row], path: Path, *, embeddings: bool = False) -> None:
    """Write rows as CSV (RFC 4180) without formulas; `predictions` and embeddings are JSON."""
    names = columns(embeddings=embeddings)
    with path.open("w", newline="", encoding="utf-8") as file:
        file.write(csv_line(names))
        for row in rows:
            inner = {
                name: json.dumps(row[name], ensure_ascii=False)
                for name in ("predictions", EMBEDDING)
                if row.get(name) is not None
            }
            file.write(csv_line({**row, **inner}.get(name) for name in names))


def write_parquet(rows: Iterator[Row], path: Path, *, embeddings: bool = False) -> None:
    """Write rows as Parquet, with ROW_GROUP rows in memory at a time, or EMBEDDING_GROUP with embeddings."""
    pa = arrow()
    prediction = pa.struct([("label", pa.string()), ("class_id", pa.int32()), ("score", pa.float32())])
    types = {
        "class_id": pa.int32(),
        "score": pa.float32(),
        "predictions": pa.list_(prediction),
        "width": pa.int32(),
        "height": pa.int32(),
        EMBEDDING: pa.list_(pa.float32()),
    }
    schema = pa.schema([(name, types.get(name, pa.string())) for name in columns(embeddings=embeddings)])
    with parquet().ParquetWriter(path, schema) as writer:
        while group := list(islice(rows, EMBEDDING_GROUP if embeddings else ROW_GROUP)):
            writer.write_table(pa.Table.from_pylist(group, schema))
