"""Finds the classes of a model by the names that people write."""

from collections.abc import Sequence

MAX_CLASS_DIGITS = 9


class ClassNames:
    """The classes of a model by label, ignoring case, with _ for a space; or by number."""

    def __init__(self, labels: Sequence[str]) -> None:
        self._labels = labels
        # A label that occurs twice, such as ImageNet's crane, can only be given by number.
        names = [_plain(label) for label in labels]
        self._numbers = {name: number for number, name in enumerate(names) if names.count(name) == 1}

    def __contains__(self, name: str) -> bool:
        return self.find(name) is not None

    def find(self, name: str) -> int | None:
        """The number of a class; None if there is no such class."""
        plain = _plain(name)
        if plain in self._numbers:
            return self._numbers[plain]
        if not plain.isdecimal() or len(plain) > MAX_CLASS_DIGITS:
            return None
        return int(plain) if int(plain) < len(self._labels) else None

    @property
    def some(self) -> str:
        """The first labels, for messages."""
        return ", ".join(self._labels[:8]) + (", …" if len(self._labels) > 8 else "")


def _plain(name: str) -> str:
    return name.strip().replace("_", " ").casefold()
