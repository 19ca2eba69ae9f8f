"""Leases of logged images: an image that one person labels is shown to no other, whichever process serves them.

A lease is an empty file of the log, leases/WINDOW/SHA256, that only one process can create. Time is divided into
windows of LEASE_SECONDS, and a lease holds until the end of the window after its own: a file that is never deleted
while it counts needs no lock.
"""

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime

from gateway_predictions.stores import Store

LEASE_SECONDS = 600.0
"""A lease holds for at least this long, and at most for twice as long. Feedback is in the log by then."""
LEASES = "leases"


def _now() -> float:
    """Seconds since 1970: processes on several machines share the windows."""
    return datetime.now(UTC).timestamp()


class Leases:
    """The leases in one log."""

    def __init__(self, store: Store, seconds: float = LEASE_SECONDS, *, clock: Callable[[], float] = _now) -> None:
        self._store = store
        self._seconds = seconds
        self._clock = clock
        self._cleared = -1

    def take(self, sha256: str) -> bool:
        """Lease an image; False if it is leased already."""
        window = self._window
        self._clear(window)
        if self._store.exists(_path(window - 1, sha256)) or not self._store.create(_path(window, sha256), b""):
            return False
        # Another process may have created its file at the end of the window before, or after the end of this one.
        return not any(self._store.exists(_path(each, sha256)) for each in (window - 1, window + 1))

    def held(self) -> set[str]:
        """The images that are leased."""
        window = self._window
        return {
            file.path.rpartition("/")[2]
            for each in (window - 1, window)
            for file in self._store.files(f"{LEASES}/{each}")
        }

    @property
    def _window(self) -> int:
        return int(self._clock() // self._seconds)

    def _clear(self, window: int) -> None:
        """Delete the leases that have ended, once in a window."""
        if self._cleared == window:
            return
        self._cleared = window
        for folder in self._store.folders(LEASES):
            if folder.isdecimal() and int(folder) < window - 1:
                for file in list(self._store.files(f"{LEASES}/{folder}")):
                    with suppress(OSError):
                        self._store.delete(file.path)


def _path(window: int, sha256: str) -> str:
    return f"{LEASES}/{window}/{sha256}"
