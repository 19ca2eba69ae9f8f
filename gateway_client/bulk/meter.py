"""Progress of a run: count and rate."""

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
        """Images that were skipped, since they have rows."""
        self.done = 0
        self.codes: Counter[str] = Counter(failed_before)
        """Number of failed images, including earlier runs, by error code."""
        self.damaged = 0
        """Images of this run with a warning in their rows."""
        self.waiting = ""
        """The reason of the current pause; empty while images are sent."""
        self._started = clock()

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

    def speed(self) -> str:
        """Format the totals of this run, at its end."""
        seconds = self._clock() - self._started
        images = "1 image" if self.done == 1 else f"{self.done:,} images"
        return f"{images} in {seconds:,.0f} s, {self.done / max(seconds, 1e-9):,.1f}/s"

    def summary(self) -> str:
        """Format the progress as one line."""
        rate = self.done / max(self._clock() - self._started, 1e-9)
        parts = [f"{self.before + self.done:,}", f"{rate:,.1f}/s"]
        parts += [f"{self.failed:,} failed"] if self.failed else []
        return ", ".join([*parts, f"waiting: {self.waiting}"] if self.waiting else parts)
