"""CSV cells that no spreadsheet evaluates as a formula.

A text that begins with = + - @, a tab or a line break, after any spaces and quotes, gets a leading ', as OWASP
recommends against CSV injection; `restored` removes it. Numbers stay as they are.
"""

from collections.abc import Iterable

_FORMULA = frozenset("=+-@\t\r\n＝＋－＠")  # noqa: RUF001  # full-width forms, which Excel treats like the others
_LEADING = " \"'\u00a0\u3000\ufeff\0\v\f"
_QUOTED = frozenset("\",;|\t\r\n'")
"""Characters that some program treats as a separator of cells or lines: a cell that has one is quoted."""


def is_formula(text: str) -> bool:
    """Whether a spreadsheet may evaluate a text as a formula."""
    begin = text.lstrip(_LEADING)[:1]
    return begin in _FORMULA and bool(begin)


def neutral(text: str) -> str:
    """Return the text in a form that no spreadsheet evaluates as a formula."""
    return f"'{text}" if is_formula(text) else text


def restored(cell: str) -> str:
    """Undo `neutral`."""
    return cell[1:] if cell.startswith("'") and is_formula(cell[1:]) else cell


def csv_line(values: Iterable[object]) -> str:
    """Format a row as a line of CSV (RFC 4180)."""
    return ",".join(map(_cell, values)) + "\r\n"


def _cell(value: object) -> str:
    text = "" if value is None else neutral(value) if isinstance(value, str) else str(value)
    return '"' + text.replace('"', '""') + '"' if _QUOTED & set(text) else text
