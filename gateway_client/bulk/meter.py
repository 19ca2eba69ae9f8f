"""How far a run has come, how fast it is, and how long it will take."""

import time
from collections import Counter, deque
from collections.abc import Mapping

from gateway_client import Result

WINDOW_SECONDS = 30.0
"""The rate is that of the last half minute: a service gets faster and slower."""


class Meter:
    """Counts results; `told` is a line for people."""

    def __init__(self, *, before: int = 0, failed_before: Mapping[str, int] | None = None) -> None:
        self.before = before
        """Rows of earlier runs."""
        self.done = 0
        self.codes: Counter[str] = Counter(failed_before)
        """Pictures without an answer, those of earlier runs included, by the codes of their errors."""
        self.total: int | None = None
        self.waiting = ""
        """Why nothing is sent for a while."""
        self.start()

    def start(self) -> None:
        """From now on time counts; a service of the run's own has started until then."""
        self._started = time.monotonic()
        self._recent: deque[tuple[float, int]] = deque([(self._started, 0)])

    def count(self, result: Result) -> None:
        """One more."""
        self.waiting = ""
        self.done += 1
        if result.error is not None:
            self.codes[result.error.code] += 1
        now = time.monotonic()
        if now - self._recent[-1][0] >= 1:
            self._recent.append((now, self.done))
            while now - self._recent[0][0] > WINDOW_SECONDS:
                self._recent.popleft()

    @property
    def failed(self) -> int:
        """Pictures without an answer."""
        return self.codes.total()

    @property
    def seconds(self) -> float:
        """Since the start of this run."""
        return time.monotonic() - self._started

    @property
    def rate(self) -> float:
        """Pictures per second, lately."""
        began, done = self._recent[0]
        return (self.done - done) / max(time.monotonic() - began, 1e-9)

    @property
    def seconds_left(self) -> float | None:
        """Until all are done, if it is known how many there are, and some were done lately."""
        if self.total is None or not self.rate:
            return None
        return max(0, self.total - self.before - self.done) / self.rate

    def told(self) -> str:
        """All of it."""
        number = f"{self.before + self.done:,}"
        parts = [f"{number} of {self.total:,}" if self.total is not None else number, f"{self.rate:,.1f}/s"]
        if self.failed:
            parts.append(f"{self.failed:,} failed")
        if self.waiting:
            parts.append(f"waiting: {self.waiting}")
        elif (left := self.seconds_left) is not None:
            parts.append(f"{duration(left)} left")
        return ", ".join(parts)


def duration(seconds: float) -> str:
    """A time as people say it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def counted(number: int, what: str) -> str:
    """A number of things, such as "1 row" and "1,200 rows"."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"
