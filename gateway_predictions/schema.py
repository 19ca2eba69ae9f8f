"""The schema of the log's Parquet files. Readers ignore columns that they do not know, and fill missing ones with null.

A new column needs no new version; a column with another meaning does.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

SCHEMA_VERSION = 1
VERSION_KEY = b"gateway.prediction_log"
"""The key of the version in the metadata of each file."""
_METADATA = {VERSION_KEY: str(SCHEMA_VERSION).encode()}

_TIME = pa.timestamp("us", tz="UTC")
PREDICTIONS = pa.schema(
    [
        ("time", _TIME),
        ("request_id", pa.string()),
        ("index", pa.int32()),
        ("model", pa.string()),
        ("version", pa.string()),
        ("reasons", pa.list_(pa.string())),
        ("share", pa.float32()),
        ("error", pa.string()),
        ("labels", pa.list_(pa.string())),
        ("class_ids", pa.list_(pa.int32())),
        ("scores", pa.list_(pa.float32())),
        ("multi_label", pa.bool_()),
        ("entropy", pa.float32()),
        ("margin", pa.float32()),
        ("width", pa.int32()),
        ("height", pa.int32()),
        ("format", pa.string()),
        ("bytes", pa.int64()),
        ("sha256", pa.string()),
        ("image", pa.string()),
        ("seal", pa.string()),
        ("embedding", pa.list_(pa.float32())),
        ("key", pa.string()),
        ("fields", pa.map_(pa.string(), pa.string())),
        ("shadow_version", pa.string()),
        ("shadow_class_id", pa.int32()),
        ("shadow_score", pa.float32()),
    ],
    metadata=_METADATA,
)
FEEDBACK = pa.schema(
    [
        ("time", _TIME),
        ("request_id", pa.string()),
        ("index", pa.int32()),
        ("model", pa.string()),
        ("label", pa.string()),
        ("class_id", pa.int32()),
        ("key", pa.string()),
        ("withdrawn", pa.bool_()),
        ("drawn", pa.bool_()),
    ],
    metadata=_METADATA,
)


def table_of(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    """A table of rows; an `embedding` is fp32 [size], or None."""
    columns = []
    for field in schema:
        values = [row.get(field.name) for row in rows]
        if field.name == "embedding":
            sizes = [0 if value is None else len(value) for value in values]
            vectors = np.concatenate([np.empty(0, np.float32), *(value for value in values if value is not None)])
            # A column of lists of numbers would make an object of each number.
            offsets = pa.array(np.concatenate([[0], np.cumsum(sizes)]), pa.int32())
            absent = pa.array([value is None for value in values])
            columns.append(pa.ListArray.from_arrays(offsets, pa.array(vectors, pa.float32()), mask=absent))
            continue
        if pa.types.is_map(field.type):
            values = [list(value.items()) if value else [] for value in values]
        columns.append(pa.array(values, field.type))
    return pa.Table.from_arrays(columns, schema=schema)
