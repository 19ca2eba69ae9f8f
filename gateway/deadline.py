"""The time by which a response must be ready."""

import time
from typing import NamedTuple


class Deadline(NamedTuple):
    """A point in time in seconds of `time.monotonic`; converted to a timeout only where a library needs one."""

    at: float

    @classmethod
    def after(cls, seconds: float) -> "Deadline":
        """The deadline `seconds` from now."""
        return cls(time.monotonic() + seconds)

    @property
    def left_seconds(self) -> float:
        """Seconds until the deadline, 0.0 once it has passed."""
        return max(0.0, self.at - time.monotonic())

    @property
    def passed(self) -> bool:
        """Whether the deadline has passed."""
        return time.monotonic() >= self.at
