"""Writes the log's files on a thread of the service, behind a bounded queue, so that no request waits for it."""

import asyncio
import contextlib
import io
import queue
import shutil
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import structlog

from gateway_models.predictions import metrics
from gateway_models.predictions.layout import FEEDBACK, day_in, day_of, image_path, new_file
from gateway_models.predictions.schema import FEEDBACK as FEEDBACK_SCHEMA
from gateway_models.predictions.schema import PREDICTIONS
from gateway_models.predictions.settings import FILE_BYTES, FILE_ROWS, FILE_SECONDS, QUEUE_BYTES, PredictionLogSettings
from gateway_models.predictions.store import Store

log = structlog.get_logger("gateway")

CLOSING_SECONDS = 4.0
"""Longest time for the last rows to be written when the service ends; a plug-in's `lifespan` has 5 seconds."""
RETRY_SECONDS = (0.5, 30.0)
"""Pause after the first failure, which doubles with each more, and the longest pause."""
SHORTEN_SECONDS = 3600.0
"""Time between two attempts to delete old days."""
TABLE_ROWS = 100
"""Rows that become columns at a time. PyArrow holds the interpreter's lock for a column, and requests wait for it."""
WRITTEN, QUEUE_FULL, SHUTDOWN, FAULT = "written", "queue_full", "shutdown", "fault"


@dataclass(frozen=True, slots=True)
class LogRow:
    """A row for a folder. `columns` makes its values, except the time, when it is written."""

    folder: str
    time: int
    """In microseconds since 1970."""
    columns: Callable[[], dict[str, Any]]
    nbytes: int
    """Bytes that the row holds until it is written."""
    image: bytes = b""
    """The uploaded file, if it is to be stored."""

    @property
    def place(self) -> tuple[str, str]:
        """The folder and the day of the row's file."""
        return self.folder, day_of(self.time)


class Writer:
    """Collects rows until a file is due, and writes them; while that fails, it tries again.

    Every row is counted once: as written, or as dropped by a reason.
    """

    def __init__(self, settings: PredictionLogSettings) -> None:
        self._settings = settings
        self._store = Store(settings.log_predictions or "")
        self._queue: queue.SimpleQueue[LogRow | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._waiting = self._nbytes = 0
        """Rows that are not written, and their bytes."""
        self._gave_up = False
        self._closing = threading.Event()
        self._shorten_due = 0.0
        # A write to a bucket may hang, and must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="prediction-log", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def add(self, row: LogRow) -> bool:
        """Queue a row; False if its bytes exceed the queue, and it is dropped."""
        if self._closing.is_set() or self._nbytes + row.nbytes > QUEUE_BYTES:
            _count(SHUTDOWN if self._closing.is_set() else QUEUE_FULL, 1)
            return False
        self._hold(1, row.nbytes)
        self._queue.put(row)
        return True

    async def close(self) -> None:
        """Write the queue within CLOSING_SECONDS; the rest is dropped."""
        self._closing.set()
        self._queue.put(None)
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, CLOSING_SECONDS)
        with self._lock:
            left, self._gave_up = self._waiting, True
        if left:
            _count(SHUTDOWN, left)
            metrics.PREDICTION_LOG_QUEUE_ROWS.dec(left)
            metrics.PREDICTION_LOG_QUEUE_BYTES.dec(self._nbytes)
            log.error("prediction_log_rows_lost", url=self._settings.log_predictions, rows=left)

    def _run(self) -> None:
        rows: list[LogRow] = []
        nbytes, due = 0, float("inf")
        ended = False
        while not ended:
            with contextlib.suppress(queue.Empty):
                row = self._queue.get(timeout=max(0, due - time.monotonic()) if rows else None)
                if row is not None:
                    due = due if rows else time.monotonic() + FILE_SECONDS
                    rows.append(row)
                    nbytes += row.nbytes
                ended = row is None
            if ended or len(rows) >= FILE_ROWS or nbytes >= FILE_BYTES or time.monotonic() >= due:
                self._write(rows)
                nbytes, due = 0, float("inf")

    def _write(self, rows: list[LogRow]) -> None:
        """Write all rows; rows that are written leave the list. Returns with some left only when the service ends."""
        pause, longest = RETRY_SECONDS
        failing = is_last = False
        rows.sort(key=lambda row: row.place)
        while rows:
            try:
                part = [row for row in rows if row.place == rows[0].place]
                self._write_file(part)
                del rows[: len(part)]
                if failing:
                    failing = False
                    log.info("prediction_log_writes_again", url=self._settings.log_predictions)
            except Exception as exc:  # each file system raises its own errors
                metrics.PREDICTION_LOG_FAILURES.labels("sink").inc()
                if not failing:
                    failing = True
                    reason = f"{type(exc).__name__}: {exc}"
                    log.error("prediction_log_not_written", url=self._settings.log_predictions, reason=reason)  # noqa: TRY400
                if is_last:
                    return
                is_last = self._closing.wait(pause)
                pause = min(2 * pause, longest)
        self._shorten()

    def _write_file(self, rows: list[LogRow]) -> None:
        """Write rows of one folder and day as a file."""
        folder, day = rows[0].place
        schema = FEEDBACK_SCHEMA if folder == FEEDBACK else PREDICTIONS
        made = [values for row in rows if (values := self._values(row, day)) is not None]
        tables = list(_tables(made, schema))
        if tables:
            data = io.BytesIO()
            pq.write_table(pa.concat_tables(tables), data, compression="zstd")
            self._store.write(new_file(folder, day), data.getvalue())
        if self._hold(-len(rows), -sum(row.nbytes for row in rows)):
            written = sum(table.num_rows for table in tables)
            _count(WRITTEN, written)
            _count(FAULT, len(rows) - written)

    def _values(self, row: LogRow, day: str) -> dict[str, Any] | None:
        """The columns of a row; None, which the log explains, if they cannot be made. Writes its image."""
        try:
            values = {**row.columns(), "time": row.time}
        except Exception:  # must not end the log
            log.exception("prediction_log_fault")
            return None
        if row.image:
            values["image"] = path = image_path(day, values["sha256"], values["format"])
            if not self._store.exists(path):
                self._store.write(path, row.image)
        return values

    def _hold(self, rows: int, nbytes: int) -> bool:
        """Count rows that wait; False, and nothing, if `close` has counted them as dropped."""
        with self._lock:
            if self._gave_up:
                return False
            self._waiting += rows
            self._nbytes += nbytes
        metrics.PREDICTION_LOG_QUEUE_ROWS.inc(rows)
        metrics.PREDICTION_LOG_QUEUE_BYTES.inc(nbytes)
        return True

    def _shorten(self) -> None:
        """Delete old days of a folder, at most every SHORTEN_SECONDS."""
        if self._store.folder is None or time.monotonic() < self._shorten_due:
            return
        self._shorten_due = time.monotonic() + SHORTEN_SECONDS
        keep_days, keep_bytes = self._settings.log_predictions_keep_days, self._settings.log_predictions_keep_bytes
        try:
            shorten(self._store.folder, keep_days, keep_bytes, datetime.now(UTC).date())
        except OSError as exc:
            metrics.PREDICTION_LOG_FAILURES.labels("retention").inc()
            # The reason is the machine's, not the code's.
            log.error("prediction_log_not_shortened", url=self._settings.log_predictions, reason=str(exc))  # noqa: TRY400


def _tables(rows: Sequence[dict[str, Any]], schema: pa.Schema) -> Iterator[pa.Table]:
    """Rows in tables of up to TABLE_ROWS; a row that the schema does not take is dropped, and logged."""
    for start in range(0, len(rows), TABLE_ROWS):
        part = rows[start : start + TABLE_ROWS]
        try:
            yield pa.Table.from_pylist(part, schema)
        except Exception:  # must not end the log
            if len(part) == 1:
                log.exception("prediction_log_fault")
            for row in part if len(part) > 1 else ():
                yield from _tables([row], schema)


def shorten(log: Path, keep_days: int, keep_bytes: int, today: date) -> None:
    """Delete days older than `keep_days`, then the oldest ones until at most `keep_bytes` are left; 0: no limit.

    Today is never deleted. Several writers may do this concurrently.
    """
    days: defaultdict[date, list[Path]] = defaultdict(list)
    for pattern in ("rows/*/day=*", "feedback/day=*", "images/day=*"):
        for folder in log.glob(pattern):
            if (day := day_in(folder.name)) is not None:
                days[day].append(folder)
    sizes = {day: sum(map(_nbytes, folders)) for day, folders in days.items()} if keep_bytes else dict.fromkeys(days, 0)
    for day in sorted(days):
        is_old = keep_days and day < today - timedelta(days=keep_days)
        is_large = keep_bytes and sum(sizes.values()) > keep_bytes
        if day >= today or not (is_old or is_large):
            return
        del sizes[day]
        for folder in days[day]:
            with contextlib.suppress(FileNotFoundError):  # another writer deletes it as well
                shutil.rmtree(folder)


def _nbytes(folder: Path) -> int:
    total = 0
    with contextlib.suppress(FileNotFoundError):  # another writer deletes it
        for path in folder.iterdir():
            total += path.stat().st_size
    return total


def _count(outcome: str, rows: int) -> None:
    metrics.PREDICTION_LOG_ROWS.labels(outcome).inc(rows)
