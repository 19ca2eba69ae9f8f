"""Which frames of a file are selected."""

import math
from dataclasses import dataclass

from gateway.ingest.frames import FrameSelection

MOST_IN_FILE = 10_000
"""Frames that one file may have, selected or not: each has to be decoded before the next one."""


@dataclass(slots=True)
class Choice:
    """Decides for each frame of a file, in order, whether it is selected; the file has `total` frames."""

    wanted: FrameSelection
    total: int
    _due_seconds: float = 0.0

    def takes(self, index: int, seconds: float) -> bool:
        """Whether the frame with this number, shown from `seconds` on, is selected."""
        if (every := self.wanted.every_seconds) is not None:
            if seconds + 1e-6 < self._due_seconds:
                return False
            self._due_seconds = every * (math.floor((seconds + 1e-6) / every) + 1)
            return True
        count = self.wanted.number_of(self.total) or self.total
        # Frame k of n is number floor(k × total / n): evenly spread, from the first one on.
        return -(-index * count // self.total) * self.total // count == index
