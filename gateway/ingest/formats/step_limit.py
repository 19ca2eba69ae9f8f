"""A bound for what reading a header may cost, counted and not timed."""

from gateway.errors import InvalidImage

MOST_STEPS = 20_000
"""Some 10 ms: a step is a segment, chunk, box, directory entry or item.

HEIC in tiles of 512 × 512 pixels, as phones write it, takes 7 steps a tile, AVIF 57: 17,000 for 78 megapixels of AVIF.
"""


class Steps:
    """The steps that are left for one file; every loop over its parts takes one at a time."""

    __slots__ = ("_left", "_name")

    def __init__(self, name: str, most: int = MOST_STEPS) -> None:
        self._name = name
        self._left = most

    def take(self, count: int = 1) -> None:
        """Count steps; raises InvalidImage where there are too many."""
        self._left -= count
        if self._left < 0:
            raise InvalidImage(f"The {self._name}'s header has too many parts.")
