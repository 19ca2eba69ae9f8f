"""The frames of an animation that a request selects."""

from dataclasses import dataclass

MOST_IN_FILE = 10_000
"""Frames that one file may have, selected or not: each has to be decoded before the next one."""


@dataclass(frozen=True, slots=True)
class FrameSelection:
    """`count` frames, evenly spread, or all; at most `most`."""

    most: int
    count: int | None = None

    def number_of(self, total: int) -> int:
        """How many of `total` frames are selected."""
        return min(self.count or total, total)

    def takes(self, index: int, total: int) -> bool:
        """Whether the frame with this number is selected: frame k of n is number floor(k × total / n)."""
        count = self.number_of(total)
        return -(-index * count // total) * total // count == index
