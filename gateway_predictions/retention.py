"""Deletes what is older than the log keeps, and the oldest days of a log that is too large."""

import time
from collections import defaultdict
from datetime import UTC, date, datetime, timedelta

from gateway_predictions.layout import FEEDBACK, IMAGES, ROWS, day_in
from gateway_predictions.stores import Store, StoredFile

INTERVAL_SECONDS = 600.0


class Retention:
    """Applies the limits of a log now and then. Several writers may do so at once."""

    def __init__(self, store: Store, keep_days: int, keep_bytes: int) -> None:
        self._store = store
        self._keep_days = keep_days
        self._keep_bytes = keep_bytes
        self._due = 0.0

    def apply_if_due(self) -> None:
        """Apply the limits, at most every INTERVAL_SECONDS; the first time at once."""
        if time.monotonic() >= self._due:
            apply_limits(self._store, self._keep_days, self._keep_bytes, datetime.now(UTC).date())
            self._due = time.monotonic() + INTERVAL_SECONDS


def apply_limits(store: Store, keep_days: int, keep_bytes: int, today: date) -> int:
    """Delete files older than `keep_days`, then the oldest days until at most `keep_bytes` are left; 0: no limit.

    Today's files are never deleted. Returns the number of deleted files.
    """
    if not keep_days and not keep_bytes:
        return 0
    by_day: defaultdict[date, list[StoredFile]] = defaultdict(list)
    for below in (ROWS, FEEDBACK, IMAGES):
        for file in store.files(below):
            if (day := day_in(file.path)) is not None:
                by_day[day].append(file)
    total = sum(file.nbytes for files in by_day.values() for file in files)
    first = today - timedelta(days=keep_days)
    deleted = 0
    for day in sorted(by_day):
        if day >= today:
            break
        if not (keep_days and day < first) and not (keep_bytes and total > keep_bytes):
            continue
        for file in by_day[day]:
            store.delete(file.path)
            total -= file.nbytes
            deleted += 1
    return deleted
