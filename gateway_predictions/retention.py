"""Deletes files that are older than the log keeps.

A log that is too large loses some files of exceptional days, and then its oldest days.
"""

import hashlib
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta

from gateway_predictions.layout import FEEDBACK, IMAGES, ROWS, day_named
from gateway_predictions.stores import Store

INTERVAL_SECONDS = 3600.0
"""Time between two attempts to apply the limits."""
OPEN_DAYS = 2
"""Days whose files may become more: today, and yesterday, of which the last rows may not be written yet."""
EXCEPTIONAL = 4
"""A day is exceptional if it has more bytes than this many median days."""


class Retention:
    """Applies the limits of a log now and then, in a thread of its own: a slow or failing store never delays a row.

    Several writers may do so at once. The folders of days are listed, and files only in those that are deleted, or
    whose size is needed and not known: days that have ended are measured once.
    """

    def __init__(self, store: Store, keep_days: int, keep_bytes: int) -> None:
        self._store = store
        self._keep_days = keep_days
        self._keep_bytes = keep_bytes
        self._due = 0.0
        self._sizes: dict[str, int] = {}
        self._thread: threading.Thread | None = None
        self._failure = ""

    def start_if_due(self) -> None:
        """Begin to apply the limits, at most every INTERVAL_SECONDS and one at a time; the first time at once."""
        is_running = self._thread is not None and self._thread.is_alive()
        if not (self._keep_days or self._keep_bytes) or is_running or time.monotonic() < self._due:
            return
        self._due = time.monotonic() + INTERVAL_SECONDS
        self._thread = threading.Thread(target=self._run, name="retention", daemon=True)
        self._thread.start()

    def failure(self) -> str:
        """Why the last attempt failed, once; "" if it did not."""
        failure, self._failure = self._failure, ""
        return failure

    def _run(self) -> None:
        try:
            apply_limits(self._store, self._keep_days, self._keep_bytes, datetime.now(UTC).date(), self._sizes)
        except Exception as exc:  # each store raises its own errors
            self._failure = f"{type(exc).__name__}: {exc}"


def apply_limits(
    store: Store, keep_days: int, keep_bytes: int, today: date, sizes: dict[str, int] | None = None
) -> int:
    """Delete files older than `keep_days`, then others until at most `keep_bytes` are left; 0: no limit.

    First an exceptional day loses images and rows, chosen at random, until it is not exceptional: a flood on one day
    must not cost the others. Then the oldest days are deleted, but not today. `sizes` remembers the bytes in folders of
    days that have ended. Returns the number of deleted files.
    """
    by_day: defaultdict[date, list[str]] = defaultdict(list)
    for folder in _folders(store):
        if (day := day_named(folder.rpartition("/")[2])) is not None:
            by_day[day].append(folder)
    sizes = {} if sizes is None else sizes
    expired = {day for day in by_day if keep_days and day < min(today, today - timedelta(days=keep_days))}
    deleted = sum(_delete(store, folder) for day in sorted(expired) for folder in by_day[day])
    if not keep_bytes:
        return deleted
    kept = {
        day: sum(_nbytes(store, folder, day, today, sizes) for folder in by_day[day]) for day in by_day.keys() - expired
    }
    thinned: set[date] = set()
    while (excess := sum(kept.values()) - keep_bytes) > 0:
        day = max(kept, key=lambda each: kept[each])
        usual = EXCEPTIONAL * statistics.median([kept[each] for each in kept if each != day] or [kept[day]])
        if kept[day] > usual and day not in thinned:
            thinned.add(day)
            nbytes, files = _thin_out(store, by_day[day], min(excess, kept[day] - int(usual)))
            kept[day] -= nbytes
            for folder in by_day[day]:
                sizes.pop(folder, None)
        elif (day := min(kept)) < today:
            del kept[day]
            files = sum(_delete(store, folder) for folder in by_day[day])
        else:
            break
        deleted += files
    return deleted


def _folders(store: Store) -> Iterator[str]:
    """The folders of days: images/DAY, feedback/DAY and rows/MODEL/DAY."""
    for top in (IMAGES, FEEDBACK, *(f"{ROWS}/{model}" for model in store.folders(ROWS))):
        yield from (f"{top}/{name}" for name in store.folders(top))


def _nbytes(store: Store, folder: str, day: date, today: date, sizes: dict[str, int]) -> int:
    if folder in sizes:
        return sizes[folder]
    nbytes = sum(file.nbytes for file in store.files(folder))
    if day <= today - timedelta(days=OPEN_DAYS):
        sizes[folder] = nbytes
    return nbytes


def _thin_out(store: Store, folders: list[str], nbytes: int) -> tuple[int, int]:
    """Delete images of a day, and then rows, of `nbytes` or a little more; returns the bytes and the number of files.

    What people said of the rows stays. The order is random, and the same for each process.
    """
    files = [file for folder in folders if not folder.startswith(f"{FEEDBACK}/") for file in store.files(folder)]
    files.sort(key=lambda file: (not file.path.startswith(f"{IMAGES}/"), hashlib.sha256(file.path.encode()).digest()))
    deleted_bytes = number = 0
    for file in files:
        if deleted_bytes >= nbytes:
            break
        store.delete(file.path)
        deleted_bytes += file.nbytes
        number += 1
    return deleted_bytes, number


def _delete(store: Store, folder: str) -> int:
    files = list(store.files(folder))
    for file in files:
        store.delete(file.path)
    return len(files)
