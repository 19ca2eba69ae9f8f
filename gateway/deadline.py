"""The moment by which an answer must be ready."""

import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Deadline:
    """A moment in the seconds of `time.monotonic`; it is passed down as it is and becomes a timeout at the edge."""

    at: float

    @classmethod
    def after(cls, seconds: float) -> "Deadline":
        """The moment `seconds` from now."""
        return cls(time.monotonic() + seconds)

    @property
    def left_seconds(self) -> float:
        """The time until then, 0.0 once it has passed."""
        return max(0.0, self.at - time.monotonic())

    @property
    def passed(self) -> bool:
        """Whether it is too late."""
        return time.monotonic() >= self.at
