"""Import of PyArrow, which only Parquet needs."""

import importlib
from typing import Any

from gateway_client.bulk.problems import BulkError


class ParquetUnavailable(BulkError):
    """PyArrow is not installed."""


def parquet() -> Any:  # noqa: ANN401  # pyarrow has no types
    """The module pyarrow.parquet; raises ParquetUnavailable."""
    return _module("pyarrow.parquet")


def arrow() -> Any:  # noqa: ANN401  # pyarrow has no types
    """The module pyarrow; raises ParquetUnavailable."""
    return _module("pyarrow")


def _module(name: str) -> Any:  # noqa: ANN401
    try:
        return importlib.import_module(name)
    except ImportError as exc:
        raise ParquetUnavailable("Parquet needs PyArrow: pip install pyarrow, or write .jsonl or .csv") from exc
