"""What the writer does with rows: files of a folder or bucket, or events for a collector."""

from collections import OrderedDict
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Protocol

from gateway_predictions.events import EventSink
from gateway_predictions.frames import LogMessage, RowKind
from gateway_predictions.layout import day_of, image_path, new_feedback, new_rows
from gateway_predictions.options import WriterOptions
from gateway_predictions.requirements import is_collector
from gateway_predictions.retention import Retention
from gateway_predictions.stores import Store, open_store

REMEMBERED_IMAGES = 10_000
"""Paths of images that need not be written again."""


class Sink(Protocol):
    """Takes rows."""

    def write(self, frames: list[LogMessage]) -> Iterator[int]:
        """Write rows, in any order; removes rows from the list once they are written, and yields their number.

        What the sink removes without counting it was refused for good. Raises any error; then the caller tries again
        with the rows that are left.
        """
        ...

    def warning(self) -> str:
        """A fault that concerns no row, once; "" if there is none."""
        ...


class FileSink:
    """Writes a Parquet file for each model and day, and the images beside them."""

    def __init__(self, options: WriterOptions) -> None:
        self._store: Store = open_store(options.url)
        self._images: OrderedDict[str, None] = OrderedDict()
        self._retention = Retention(self._store, options.keep_days, options.keep_bytes)

    def write(self, frames: list[LogMessage]) -> Iterator[int]:
        """See Sink.write: file by file."""
        import io

        import pyarrow.parquet as pq

        from gateway_predictions.schema import FEEDBACK, PREDICTIONS, table_of

        self._retention.start_if_due()
        frames.sort(key=_place)
        while frames:
            kind, model, day = place = _place(frames[0])
            part = [frame for frame in frames if _place(frame) == place]
            rows = [self._row(frame, day) for frame in part]
            data = io.BytesIO()
            schema = PREDICTIONS if kind is RowKind.PREDICTION else FEEDBACK
            pq.write_table(table_of(rows, schema), data, compression="zstd")
            now = datetime.now(UTC)
            path = new_rows(model, day, now) if kind is RowKind.PREDICTION else new_feedback(day, now)
            self._store.write(path, data.getvalue())
            del frames[: len(part)]
            yield len(part)

    def warning(self) -> str:
        """See Sink.warning: old files that could not be deleted."""
        failure = self._retention.failure()
        return failure and f"old files are not deleted: {failure}"

    def _row(self, frame: LogMessage, day: str) -> dict[str, object]:
        return {**frame.row, "embedding": frame.embedding, "image": self._write_image(frame, day)}

    def _write_image(self, frame: LogMessage, day: str) -> str | None:
        """Write the image of a row unless it is there; returns its path."""
        if not frame.image:
            return None
        path = image_path(day, frame.row["sha256"], frame.row["format"])
        if path in self._images:
            self._images.move_to_end(path)
            if self._store.exists(path):  # it may have been forgotten, or deleted with its day
                return path
        self._store.write(path, frame.image)
        self._images[path] = None
        if len(self._images) > REMEMBERED_IMAGES:
            self._images.popitem(last=False)
        return path


def open_sink(options: WriterOptions) -> Sink:
    """The sink of a log's URL; raises LogUnavailable."""
    if is_collector(options.url):
        return EventSink(options)
    return FileSink(options)


def _place(frame: LogMessage) -> tuple[RowKind, str, str]:
    """The file of a row: its kind, its model for predictions, and its day."""
    return frame.kind, frame.row["model"] if frame.kind is RowKind.PREDICTION else "", day_of(frame.row["time"])
