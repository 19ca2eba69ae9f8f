"""Text of unknown origin, escaped and shortened for a terminal or a log."""

import re
import unicodedata

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories of control characters, invisible characters and bidi controls."""


MAX_WORD_CHARACTERS = 300
MAX_CHARACTERS = 4_000
_LONG_WORD = re.compile(rf"\S{{{MAX_WORD_CHARACTERS + 1},}}")


def visible(text: object) -> str:
    r"""Escape control characters, line breaks, bidi controls and lone surrogates, as in \x1b.

    Names may have 200 kB: the middle of a word beyond MAX_WORD_CHARACTERS, or of a text beyond MAX_CHARACTERS, is cut.
    """
    found = _cut(_LONG_WORD.sub(lambda word: _cut(word[0], MAX_WORD_CHARACTERS), str(text)), MAX_CHARACTERS)
    return found if found.isascii() and found.isprintable() else "".join(map(_escaped, found))


def _escaped(character: str) -> str:
    if unicodedata.category(character) not in _HIDDEN:
        return character
    return character.encode("unicode_escape").decode()


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most // 2]}…{text[-most // 2 + 1 :]}"
