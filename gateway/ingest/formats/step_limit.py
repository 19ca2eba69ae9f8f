"""Limits the work of reading a header: steps are counted, not timed."""

from gateway.errors import InvalidImage


class Steps:
    """The steps that are left for one file: one for each segment or chunk that is read."""

    __slots__ = ("_left", "_name")

    def __init__(self, name: str, most: int) -> None:
        self._name = name
        self._left = most

    def take(self, count: int = 1) -> None:
        """Count steps; raises InvalidImage if there are too many."""
        self._left -= count
        if self._left < 0:
            raise too_many_parts(self._name)


def too_many_parts(name: str) -> InvalidImage:
    """The error of a file with more parts than are read."""
    return InvalidImage(f"The {name}'s header has too many parts.")
