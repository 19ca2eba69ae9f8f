"""Reads a log, for all commands."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from gateway.values.safe_path import UnsafePath
from gateway_models.predictions.layout import FEEDBACK as FEEDBACK_FOLDER
from gateway_models.predictions.layout import ROWS, day_in, model_folder, stored_image
from gateway_models.predictions.schema import FEEDBACK, PREDICTIONS, SCHEMA_VERSION, VERSION_KEY
from gateway_models.predictions.store import LogUnavailable, Store

Row = dict[str, Any]
MAX_ROWS = 1_000_000
"""Limit of the rows of one file, and of all results in memory, which take some 2 GB."""
REQUIRED = frozenset({"time", "request_id", "index", "model", "reasons", "sha256"})


@dataclass(frozen=True, slots=True)
class Labelled:
    """A logged result with a client's feedback; `label` is None if the client only knows that it is wrong."""

    row: Row
    label: str | None
    class_id: int | None
    is_drawn: bool = False
    """Whether the image was chosen at random to be labelled, independent of its answer and of users' reports."""

    @property
    def is_correct(self) -> bool:
        """Whether the best class is the true one."""
        if self.class_id is not None:
            return bool(self.row["class_ids"][0] == self.class_id)
        return self.label is not None and bool(self.row["labels"][0] == self.label)


class LogReader:
    """The rows, feedback and images of a log in a folder or bucket. Raises LogUnavailable if it cannot be read.

    A log may be written while it is read: each file is complete, and files that are deleted meanwhile are left out.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.store = Store(url)

    def tables(
        self,
        below: str = ROWS,
        schema: pa.Schema = PREDICTIONS,
        *,
        model: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        columns: Sequence[str] | None = None,
    ) -> Iterator[pa.Table]:
        """Yield the rows file by file, so that a log larger than the memory can be read.

        `since` is included and `until` is not; `columns` are a part of the schema, all by default.
        """
        times = ds.scalar(True)  # noqa: FBT003  # PyArrow's signature
        if since is not None:
            times &= ds.field("time") >= pa.scalar(since, schema.field("time").type)
        if until is not None:
            times &= ds.field("time") < pa.scalar(until, schema.field("time").type)
        for path in self.files(below if model is None else model_folder(model)):
            day = day_in(path)
            if day is None or (since and day < since.date()) or (until and day > until.date()):
                continue
            try:
                table = self._read(path, schema, times, columns)
            except FileNotFoundError:  # deleted meanwhile
                continue
            if table.num_rows:
                yield table

    def results(
        self, *, model: str | None = None, since: datetime | None = None, columns: Sequence[str] | None = None
    ) -> list[Row]:
        """The results without an error, each image of each request once, sorted by time.

        An image that a shadow version contradicts may have two rows, which become one with the reasons of both.
        """
        needed = ("time", "request_id", "index", "model", "reasons", "error")
        columns = PREDICTIONS.names if columns is None else list(dict.fromkeys([*columns, *needed]))
        rows: list[Row] = []
        for table in self.tables(model=model, since=since, columns=columns):
            try:
                _check_count(len(rows) + table.num_rows)
            except ValueError as exc:
                raise LogUnavailable(f"{self.url} {exc}: name fewer by --days or --model") from None
            rows += table.to_pylist()
        found: dict[tuple[str, int, str], Row] = {}
        for row in sorted((row for row in rows if row["error"] is None), key=lambda row: row["time"]):
            known = found.setdefault(key_of(row), row)
            if known is not row:
                known["reasons"] = list(dict.fromkeys([*known["reasons"], *row["reasons"]]))
        return list(found.values())

    def labels(self) -> dict[tuple[str, int, str], Row]:
        """The last feedback for each image that was not withdrawn, by `key_of`.

        `drawn` is whether the image was ever chosen at random to be labelled: a later report does not change that.
        """
        rows = [row for table in self.tables(FEEDBACK_FOLDER, FEEDBACK) for row in table.to_pylist()]
        given: defaultdict[tuple[str, int, str], list[Row]] = defaultdict(list)
        for row in sorted(rows, key=lambda row: row["time"]):
            if not row["withdrawn"]:
                given[key_of(row)].append(row)
            elif given[key_of(row)]:
                given[key_of(row)].pop()
        return {key: {**rows[-1], "drawn": any(row["drawn"] for row in rows)} for key, rows in given.items() if rows}

    def labelled(self, *, model: str | None = None, since: datetime | None = None) -> list[Labelled]:
        """The results of which a client has given feedback, sorted by the time of the result."""
        labels = self.labels()
        return [
            Labelled(row, labels[key]["label"], labels[key]["class_id"], labels[key]["drawn"])
            for row in self.results(model=model, since=since)
            if (key := key_of(row)) in labels and row["class_ids"]
        ]

    def image(self, path: str) -> bytes | None:
        """A stored image, by the column `image`; None if it was deleted.

        Raises LogUnavailable if the column names something else: a writer of rows must not choose which file is read.
        """
        try:
            return self.store.read(stored_image(path))
        except UnsafePath as exc:
            raise LogUnavailable(f"{self.url} has a row whose image is not one of the log's: {exc}") from exc
        except FileNotFoundError:
            return None

    def files(self, below: str) -> list[str]:
        """The Parquet files below a folder."""
        try:
            return [path for path in self.store.files(below) if path.endswith(".parquet")]
        except Exception as exc:  # each file system raises its own errors
            raise LogUnavailable(f"{self.url} cannot be listed: {exc or type(exc).__name__}") from exc

    def _read(self, path: str, schema: pa.Schema, times: ds.Expression, columns: Sequence[str] | None) -> pa.Table:
        """The rows and columns of a file; columns that it lacks are null."""
        try:
            file = ds.ParquetFileFormat().make_fragment(pa.BufferReader(self.store.read(path)))
            version = int((file.physical_schema.metadata or {}).get(VERSION_KEY, b"0"))
            if 1 <= version <= SCHEMA_VERSION:
                _check_count(file.count_rows())
                table = file.to_table(schema=schema, columns=columns and list(columns), filter=times)
                _check(table)
                return table
        except FileNotFoundError:
            raise
        except Exception as exc:  # each file system raises its own errors
            raise LogUnavailable(f"{self.url}/{path} cannot be read: {exc or type(exc).__name__}") from exc
        raise LogUnavailable(
            f"{self.url}/{path} is of version {version or '?'} of the log, and this program reads versions up to "
            f"{SCHEMA_VERSION}: use a newer one"
        )


def _check_count(rows: int) -> None:
    if rows > MAX_ROWS:
        raise ValueError(f"has more than {MAX_ROWS:,} rows")


def _check(table: pa.Table) -> None:
    """Raise ValueError if a row lacks a required column, or has no valid time or text."""
    table.validate(full=True)  # also whether texts are UTF-8
    if missing := [name for name in table.column_names if name in REQUIRED and table[name].null_count]:
        raise ValueError(f"a row has no {missing[0]}")
    if "time" in table.column_names:
        pc.min_max(table["time"]).as_py()  # Python's datetime ends with the year 9999
    answers = [table[name] for name in ("labels", "class_ids", "scores") if name in table.column_names]
    sizes = [pc.fill_null(pc.list_value_length(column), 0) for column in answers]
    if any(size != sizes[0] for size in sizes) or any(pc.list_flatten(column).null_count for column in answers):
        raise ValueError("a row has not one label, class and score for each of its best classes")


def key_of(row: Row) -> tuple[str, int, str]:
    """The key of an image: its request, its position there, and the model."""
    return row["request_id"], row["index"], row["model"]
