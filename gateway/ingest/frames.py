"""The frames of an animation or a video that a request selects."""

from dataclasses import dataclass

PATTERN = r"^(all|[1-9][0-9]{0,5}|every:[0-9]{1,6}(\.[0-9]{1,6})?s)$"
"""The values of `frames`: a number, all, or every:0.5s."""


@dataclass(frozen=True, slots=True)
class FrameSelection:
    """`count` frames, evenly spread; or the first in each `every_seconds`; or all. At most `most`."""

    most: int
    count: int | None = None
    every_seconds: float | None = None

    def number_of(self, total: int) -> int | None:
        """How many of `total` frames are selected; None if that depends on their times."""
        return None if self.every_seconds is not None else min(self.count or total, total)
