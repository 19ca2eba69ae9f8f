"""What was probably meant by a name that there is not."""

import difflib
from collections.abc import Iterable

TOLD_CHARACTERS = 80
"""What is compared of a name, and what of it an error tells."""


def near(name: str, known: Iterable[str], most: int = 1) -> str:
    """The known names most like another, as a question that follows it, or an empty text where none is like it."""
    found = difflib.get_close_matches(name[:TOLD_CHARACTERS].lower(), list(known), n=most)
    return f"did you mean {' or '.join(map(repr, found))}?" if found else ""
