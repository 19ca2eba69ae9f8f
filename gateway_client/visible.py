"""Text of unknown origin, escaped for a terminal or a log."""

import unicodedata

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories of control characters, invisible characters and bidi controls."""


def visible(text: object) -> str:
    r"""Escape control characters, line breaks, bidi controls and lone surrogates, as in \x1b."""
    found = str(text)
    return found if found.isascii() and found.isprintable() else "".join(map(_escaped, found))


def _escaped(character: str) -> str:
    if unicodedata.category(character) not in _HIDDEN:
        return character
    return character.encode("unicode_escape").decode()
