"""Text of unknown origin as a terminal or a log may show it."""

import unicodedata

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode's categories of what a terminal obeys, hides, or turns the text around it by."""


def visible(text: object) -> str:
    r"""Text in which control characters, line breaks, bidi controls and lone surrogates are escaped, as in \x1b."""
    found = str(text)
    return found if found.isascii() and found.isprintable() else "".join(map(_shown, found))


def visible_lines(text: object) -> str:
    """The same for text of several lines, whose line breaks stay; a line after the first one is indented.

    So a file's name cannot pretend to be a message of its own.
    """
    return "\n  ".join(map(visible, str(text).split("\n")))


def _shown(sign: str) -> str:
    if unicodedata.category(sign) not in _HIDDEN:
        return sign
    return sign.encode("unicode_escape").decode()
