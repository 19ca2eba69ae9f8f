"""Did-you-mean suggestions."""

import difflib
from collections.abc import Iterable

TOLD_CHARACTERS = 80
"""Characters of a name that are compared, and repeated in an error message."""


def near(name: str, known: Iterable[str], most: int = 1) -> str:
    """A question that suggests the `most` known names most similar to `name`; "" if none is similar."""
    found = difflib.get_close_matches(name[:TOLD_CHARACTERS].lower(), list(known), n=most)
    return f"did you mean {' or '.join(map(repr, found))}?" if found else ""
