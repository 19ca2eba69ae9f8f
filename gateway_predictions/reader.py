"""Reads a log: the one reader that all commands use."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gateway_plugins.shared.safe_path import UnsafePath
from gateway_predictions.layout import FEEDBACK as FEEDBACK_FOLDER
from gateway_predictions.layout import IMAGES, ROWS, day_in, model_folder, stored_image
from gateway_predictions.requirements import LogUnavailable
from gateway_predictions.schema import FEEDBACK, PREDICTIONS, SCHEMA_VERSION, VERSION_KEY
from gateway_predictions.stores import Store, StoredFile, open_store

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Labelled:
    """A logged result with what a client knows of it; `label` is None if the client only knows that it is wrong."""

    row: Row
    label: str | None
    class_id: int | None
    is_drawn: bool = False
    """Whether the image was chosen at random to be labelled, whatever its answer and whatever users reported."""

    @property
    def is_correct(self) -> bool:
        """Whether the best class is the true one."""
        if self.label is None and self.class_id is None:
            return False
        if self.class_id is not None:
            return bool(self.row["class_ids"][0] == self.class_id)
        return bool(self.row["labels"][0] == self.label)


class LogReader:
    """The rows, feedback and images of a log in a folder or bucket. Raises LogUnavailable if it cannot be read.

    A log may be written while it is read: each file is complete, and files that are deleted meanwhile are left out.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.store: Store = open_store(url)

    def tables(
        self,
        *,
        model: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        columns: Sequence[str] | None = None,
    ) -> Iterator[pa.Table]:
        """Yield the rows file by file, so that a log larger than the memory can be read.

        `since` is included and `until` is not; `columns` are those of `schema.PREDICTIONS`, all by default.
        """
        below = ROWS if model is None else model_folder(model)
        yield from self._tables(below, PREDICTIONS, since, until, columns)

    def predictions(
        self,
        *,
        model: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """All rows as one table, sorted by time; see `tables`."""
        found = list(self.tables(model=model, since=since, until=until, columns=_with_time(columns)))
        table = pa.concat_tables(found) if found else _schema(PREDICTIONS, _with_time(columns)).empty_table()
        table = table.sort_by("time")
        return table if columns is None else table.select(list(columns))

    def feedback(self, *, since: datetime | None = None) -> pa.Table:
        """All feedback, sorted by time."""
        found = list(self._tables(FEEDBACK_FOLDER, FEEDBACK, since, None, None))
        return (pa.concat_tables(found) if found else FEEDBACK.empty_table()).sort_by("time")

    def results(
        self, *, model: str | None = None, since: datetime | None = None, columns: Sequence[str] | None = None
    ) -> list[Row]:
        """The results without an error, each image of each request once, sorted by time.

        An image that a shadow version contradicts may have two rows, which become one with the reasons of both.
        """
        needed = None if columns is None else list(dict.fromkeys([*columns, "request_id", "index", "model", "reasons"]))
        needed = needed if needed is None else list(dict.fromkeys([*needed, "error", "shadow_version"]))
        found: dict[tuple[str, int, str], Row] = {}
        for row in self.predictions(model=model, since=since, columns=needed).to_pylist():
            if row["error"] is not None:
                continue
            known = found.setdefault(key_of(row), row)
            if known is not row:
                known["reasons"] = list(dict.fromkeys([*known["reasons"], *row["reasons"]]))
        return list(found.values())

    def labels(self) -> dict[tuple[str, int, str], Row]:
        """The last feedback for each image that was not withdrawn, by `key_of`.

        `drawn` is whether the image was ever chosen at random to be labelled: a later report does not change that.
        """
        given: defaultdict[tuple[str, int, str], list[Row]] = defaultdict(list)
        for row in self.feedback().to_pylist():
            if not row["withdrawn"]:
                given[key_of(row)].append(row)
            elif given[key_of(row)]:
                given[key_of(row)].pop()
        return {key: {**rows[-1], "drawn": any(row["drawn"] for row in rows)} for key, rows in given.items() if rows}

    def labelled(self, *, model: str | None = None, since: datetime | None = None) -> list[Labelled]:
        """The results of which a client has given feedback, sorted by the time of the result."""
        labels = self.labels()
        columns = [name for name in PREDICTIONS.names if name != "embedding"]
        return [
            Labelled(row, labels[key]["label"], labels[key]["class_id"], labels[key]["drawn"])
            for row in self.results(model=model, since=since, columns=columns)
            if (key := key_of(row)) in labels and row["class_ids"]
        ]

    def image(self, path: str) -> bytes | None:
        """A stored image, by the column `image`; None if it was deleted.

        Raises LogUnavailable if the column names something else: whoever can write rows must not choose what is read.
        """
        try:
            return self.store.read(stored_image(path))
        except UnsafePath as exc:
            raise LogUnavailable(f"{self.url} has a row whose image is not one of the log's: {exc}") from exc
        except FileNotFoundError:
            return None

    def images(self) -> Iterator[StoredFile]:
        """Yield the stored images."""
        yield from self.store.files(IMAGES)

    def _tables(
        self,
        below: str,
        schema: pa.Schema,
        since: datetime | None,
        until: datetime | None,
        columns: Sequence[str] | None,
    ) -> Iterator[pa.Table]:
        wanted = _schema(schema, _with_time(columns))
        days = (_day(since), _day(until))
        for file in self._files(below):
            day = day_in(file.path)
            if day is None or (days[0] and day < days[0]) or (days[1] and day > days[1]):
                continue
            try:
                table = self._read(file.path, wanted)
            except FileNotFoundError:  # deleted meanwhile
                continue
            if since is not None:
                table = table.filter(pc.greater_equal(table["time"], pa.scalar(since, table["time"].type)))
            if until is not None:
                table = table.filter(pc.less(table["time"], pa.scalar(until, table["time"].type)))
            if table.num_rows:
                yield table if columns is None else table.select(list(columns))

    def _files(self, below: str) -> Iterator[StoredFile]:
        try:
            for file in self.store.files(below):
                if file.path.endswith(".parquet"):
                    yield file
        except Exception as exc:  # each file system raises its own errors
            raise LogUnavailable(f"{self.url} cannot be listed: {exc or type(exc).__name__}") from exc

    def _read(self, path: str, schema: pa.Schema) -> pa.Table:
        """The columns of a file; those that it lacks are null."""
        try:
            file = pq.ParquetFile(pa.BufferReader(self.store.read(path)))
            there = file.schema_arrow
            version = int((there.metadata or {}).get(VERSION_KEY, b"0"))
            table = file.read(columns=[name for name in schema.names if name in there.names])
        except FileNotFoundError:
            raise
        except Exception as exc:  # each file system raises its own errors
            raise LogUnavailable(f"{self.url}/{path} cannot be read: {exc or type(exc).__name__}") from exc
        if not 1 <= version <= SCHEMA_VERSION:
            raise LogUnavailable(
                f"{self.url}/{path} is of version {version or '?'} of the log, and this program reads versions up to "
                f"{SCHEMA_VERSION}: use a newer one"
            )
        arrays = [
            table[field.name].cast(field.type) if field.name in table.column_names else pa.nulls(len(table), field.type)
            for field in schema
        ]
        return pa.Table.from_arrays(arrays, schema=schema)


def key_of(row: Row) -> tuple[str, int, str]:
    """What identifies an image: its request, its position there, and the model."""
    return row["request_id"], row["index"], row["model"]


def _schema(schema: pa.Schema, columns: Collection[str] | None) -> pa.Schema:
    if columns is None:
        return schema
    return pa.schema([schema.field(name) for name in columns], metadata=schema.metadata)


def _with_time(columns: Sequence[str] | None) -> list[str] | None:
    return None if columns is None else list(dict.fromkeys([*columns, "time"]))


def _day(time: datetime | None) -> date | None:
    return None if time is None else time.astimezone(UTC).date()
