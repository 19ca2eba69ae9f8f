"""The frames of an animation that a request selects."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FrameSelection:
    """`count` frames, evenly spread; or the first in each `every_seconds`; or all. At most `most`."""

    most: int
    count: int | None = None
    every_seconds: float | None = None

    def number_of(self, total: int) -> int | None:
        """How many of `total` frames are selected; None if that depends on their times."""
        return None if self.every_seconds is not None else min(self.count or total, total)
