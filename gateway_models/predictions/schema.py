"""The schema of the log's Parquet files. Readers ignore columns that they do not know, and fill missing ones with null.

A new column needs no new version; a column with another meaning does.
"""

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
        ("signature", pa.string()),
        ("key", pa.string()),
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
