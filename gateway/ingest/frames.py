"""Which frames of an animated picture or a video a request wants."""

import math
import re
from dataclasses import dataclass

from gateway.errors import InvalidParameter

MOST_IN_FILE = 10_000
"""Frames that one file may have, wanted or not: each of them has to be decoded to come to the next."""
PATTERN = r"^(all|[1-9][0-9]{0,5}|every:[0-9]{1,6}(\.[0-9]{1,6})?s)$"
"""What `frames` may be: a number, all, or every:0.5s."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """`count` frames, evenly spread; or the first in each `every_seconds`; or all. `most` is what is allowed."""

    most: int
    count: int | None = None
    every_seconds: float | None = None

    def number_of(self, total: int) -> int | None:
        """How many of `total` frames are wanted; None where only their times tell."""
        return None if self.every_seconds is not None else min(self.count or total, total)


@dataclass(slots=True)
class Choice:
    """Says of each frame of a file, in their order, whether it is wanted; of `total` in the file."""

    wanted: Wanted
    total: int
    _due_seconds: float = 0.0

    def takes(self, index: int, seconds: float) -> bool:
        """Whether the frame with this number, shown from `seconds` on, is wanted."""
        if (every := self.wanted.every_seconds) is not None:
            if seconds + 1e-6 < self._due_seconds:
                return False
            self._due_seconds = every * (math.floor((seconds + 1e-6) / every) + 1)
            return True
        count = self.wanted.number_of(self.total) or self.total
        # Frame k of n is number floor(k × total / n): evenly spread, from the first one on.
        return -(-index * count // self.total) * self.total // count == index


def read_frames(given: str, most: int) -> Wanted:
    """A request's `frames`, of which it may have `most`; raises InvalidParameter."""
    if re.fullmatch(PATTERN, given) is None:
        raise InvalidParameter(
            "'frames': must be a number of frames, 'all', or a time such as 'every:0.5s' for a frame in each."
        )
    if given == "all":
        return Wanted(most)
    if given.startswith("every:"):
        every = float(given.removeprefix("every:").removesuffix("s"))
        if every <= 0:
            raise InvalidParameter("'frames': the time between two frames must be above 0, such as 'every:0.5s'.")
        return Wanted(most, every_seconds=every)
    if int(given) > most:
        raise InvalidParameter(f"'frames': must be at most {most}.", limit="max_frames", value=most)
    return Wanted(most, count=int(given))
