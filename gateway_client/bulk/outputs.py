"""The rows of the output, and its formats: JSON lines, CSV and Parquet."""

import importlib
import json
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from gateway_client import Prediction, Result
from gateway_client.bulk import BulkError
from gateway_client.csv_cells import csv_line

Row = dict[str, Any]
COLUMNS = (
    *("path", "status", "label", "class_id", "score", "predictions", "width", "height", "model", "version"),
    *("error", "message", "warning"),
)
"""`label`, `class_id` and `score` describe the best class; `error` is a code, `message` its description."""
EMBEDDING = "embedding"
"""Additional column of a run with `--embeddings`: the embedding as a list of numbers."""
GROUP_ROWS = 1_000
"""Rows of a Parquet file that are in memory at a time."""
Write = Callable[[Iterator[Row], Path], None]


def printable(name: str) -> str:
    r"""Make a file name valid UTF-8: an invalid byte such as E9 becomes the text \udce9.

    Python represents such a byte as a lone surrogate, which would make the whole output unreadable to strict readers.
    """
    return name.encode(errors="backslashreplace").decode()


def row_of(result: Result, *, embeddings: bool = False) -> Row:
    """Convert a result to a row with COLUMNS, and with `embedding` if it has one."""
    best, error = result.best, result.error
    row: Row = {
        "path": printable(result.name),
        "status": "ok" if error is None else "error",
        "label": best and best.label,
        "class_id": best and best.class_id,
        "score": best and best.score,
        "predictions": _objects(result.predictions),
        "width": result.width,
        "height": result.height,
        "model": result.model,
        "version": result.version,
        "error": error and error.code,
        "message": error and error.message,
        "warning": result.warning,
    }
    if embeddings:
        row[EMBEDDING] = result.embedding and result.embedding.tolist()
    return row


def _objects(predictions: Iterable[Prediction]) -> list[Row]:
    return [{"label": each.label, "class_id": each.class_id, "score": each.score} for each in predictions]


def writer(out: Path, *, embeddings: bool = False) -> Write:
    """The function that writes an output of this suffix; raises BulkError."""
    names = (*COLUMNS, EMBEDDING) if embeddings else COLUMNS
    match out.suffix.lower():
        case ".jsonl" | ".ndjson":
            return write_json_lines
        case ".csv":
            return partial(write_csv, names)
        case ".parquet":
            parquet()  # report a missing PyArrow before the run, not after it
            return partial(write_parquet, names)
    raise BulkError(f"{out.name!r}: the output's suffix must be .jsonl, .csv or .parquet")


def write_json_lines(rows: Iterator[Row], path: Path) -> None:
    """Write rows as lines of JSON."""
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n")


def write_csv(names: tuple[str, ...], rows: Iterator[Row], path: Path) -> None:
    """Write rows as CSV (RFC 4180) without formulas; `predictions` and embeddings are JSON."""
    with path.open("w", newline="", encoding="utf-8") as file:
        file.write(csv_line(names))
        for row in rows:
            for name in ("predictions", EMBEDDING):
                if row.get(name) is not None:
                    row[name] = json.dumps(row[name], ensure_ascii=False)
            file.write(csv_line(row.get(name) for name in names))


def write_parquet(names: tuple[str, ...], rows: Iterator[Row], path: Path) -> None:
    """Write rows as Parquet."""
    module = parquet()
    pa = importlib.import_module("pyarrow")
    prediction = pa.struct([("label", pa.string()), ("class_id", pa.int32()), ("score", pa.float32())])
    types = {
        **dict.fromkeys(("class_id", "width", "height"), pa.int32()),
        "score": pa.float32(),
        "predictions": pa.list_(prediction),
        EMBEDDING: pa.list_(pa.float32()),
    }
    schema = pa.schema([(name, types.get(name, pa.string())) for name in names])
    with module.ParquetWriter(path, schema) as file:
        while group := list(islice(rows, GROUP_ROWS)):
            file.write_table(pa.Table.from_pylist(group, schema))


def parquet() -> Any:  # noqa: ANN401  # pyarrow has no types
    """The module pyarrow.parquet; raises BulkError."""
    try:
        return importlib.import_module("pyarrow.parquet")
    except ImportError as exc:
        raise BulkError("Parquet needs PyArrow: pip install pyarrow, or use JSON lines or CSV") from exc
