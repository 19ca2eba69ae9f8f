"""The frames of an animation or a video that a request selects."""

import math
import re
from dataclasses import dataclass

from gateway.errors import InvalidParameter

MOST_IN_FILE = 10_000
"""Frames that one file may have, selected or not: each has to be decoded before the next one."""
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


def read_frames(given: str, most: int) -> FrameSelection:
    """Parse a request's `frames`, at most `most`; raises InvalidParameter."""
    if re.fullmatch(PATTERN, given) is None:
        raise InvalidParameter(
            "'frames': must be a number of frames, 'all', or a time such as 'every:0.5s' for a frame in each."
        )
    if given == "all":
        return FrameSelection(most)
    if given.startswith("every:"):
        every = float(given.removeprefix("every:").removesuffix("s"))
        if every <= 0:
            raise InvalidParameter("'frames': the time between two frames must be above 0, such as 'every:0.5s'.")
        return FrameSelection(most, every_seconds=every)
    if int(given) > most:
        raise InvalidParameter(f"'frames': must be at most {most:,}.", limit="max_frames", value=most)
    return FrameSelection(most, count=int(given))
