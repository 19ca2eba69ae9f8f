"""Progress of a run: count, rate and estimated time left."""

import time
from collections import Counter
from collections.abc import Callable, Mapping

from gateway_client import Result


class Meter:
    """Counts results; `summary` is the progress line."""

    def __init__(
        self, *, failed_before: Mapping[str, int] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self.before = 0
        """Images that were passed over, since they have rows."""
        self.done = 0
        self.codes: Counter[str] = Counter(failed_before)
        """Number of failed images, including those of earlier runs, by error code."""
        self.damaged = 0
        """Images of this run with a warning in their rows."""
        self.total: int | None = None
        self.waiting = ""
        """The reason of the current pause; empty while images are sent."""
        self.start()

    def start(self) -> None:
        """Start the clock, once a service that the run starts itself is ready."""
        self._started = self._clock()

    def count(self, result: Result) -> None:
        """Count a result."""
        self.waiting = ""
        self.done += 1
        self.damaged += result.warning is not None
        if result.error is not None:
            self.codes[result.error.code] += 1

    @property
    def failed(self) -> int:
        """Number of failed images."""
        return self.codes.total()

    @property
    def seconds(self) -> float:
        """Seconds since the start of this run."""
        return self._clock() - self._started

    def speed(self) -> str:
        """Format what this run has done, at its end."""
        images = "1 image" if self.done == 1 else f"{self.done:,} images"
        return f"{images} in {duration(self.seconds)}, {self.done / max(self.seconds, 1e-9):,.1f}/s"

    def summary(self) -> str:
        """Format the progress as one line."""
        rate = self.done / max(self.seconds, 1e-9)
        number = f"{self.before + self.done:,}"
        parts = [f"{number} of {self.total:,}" if self.total is not None else number, f"{rate:,.1f}/s"]
        if self.failed:
            parts.append(f"{self.failed:,} failed")
        if self.waiting:
            parts.append(f"waiting: {self.waiting}")
        elif self.total is not None and rate:
            parts.append(f"{duration(max(0, self.total - self.before - self.done) / rate)} left")
        return ", ".join(parts)


def duration(seconds: float) -> str:
    """Format seconds as seconds, minutes or hours."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
