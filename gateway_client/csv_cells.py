"""Cells of CSV files that no spreadsheet takes for a formula.

A text that begins with = + - @, a tab or a line break, after any spaces and quotes, is written with ' before it, as
OWASP advises against CSV injection; `restored` takes it away again. Numbers stay as they are.
"""

from collections.abc import Iterable

_FORMULA = frozenset("=+-@\t\r\n＝＋－＠")  # noqa: RUF001  # full-width forms, which Excel takes for the others
_LEADING = " \"'\u00a0\u3000\ufeff\0\v\f"
_QUOTED = frozenset("\",;|\t\r\n'")
"""What separates cells or lines for one program or another, so that its cell is quoted."""


def is_formula(text: str) -> bool:
    """Whether a spreadsheet may take a text for a formula."""
    begin = text.lstrip(_LEADING)[:1]
    return begin in _FORMULA and bool(begin)


def neutral(text: str) -> str:
    """A text that no spreadsheet takes for a formula."""
    return f"'{text}" if is_formula(text) else text


def restored(cell: str) -> str:
    """The text that `neutral` was given."""
    return cell[1:] if cell.startswith("'") and is_formula(cell[1:]) else cell


def csv_line(values: Iterable[object]) -> str:
    """A row as a line of CSV (RFC 4180)."""
    return ",".join(map(_cell, values)) + "\r\n"


def _cell(value: object) -> str:
    text = "" if value is None else neutral(value) if isinstance(value, str) else str(value)
    return '"' + text.replace('"', '""') + '"' if _QUOTED & set(text) else text
