"""Messages about wrong values: pydantic's validation errors in plain words, and did-you-mean suggestions."""

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

VERSION_PATTERN = r"^[0-9]{1,18}$"
"""The version number of a model, as in URLs."""
NAME_CHARACTERS = 80
"""Characters of a client's name that are compared with known names, and repeated in an error message."""
_SHOWN_CHARACTERS = 40
_FORMS = {VERSION_PATTERN: "the number of a version, such as 2"}
"""Plain words for a regular expression."""

_WHOLE, _NUMBER, _TRUTH, _TEXT = "must be a whole number", "must be a number", "must be true or false", "must be text"
_EXPECTED: dict[str, str | Callable[[Mapping[str, Any]], str]] = {
    "bool_parsing": _TRUTH,
    "bool_type": _TRUTH,
    "dict_type": "must be an object",
    "enum": lambda context: f"must be {context['expected']}",
    "finite_number": _NUMBER,
    "float_parsing": _NUMBER,
    "float_type": _NUMBER,
    "greater_than": lambda context: f"must be above {_number(context['gt'])}",
    "greater_than_equal": lambda context: f"must be at least {_number(context['ge'])}",
    "int_from_float": _WHOLE,
    "int_parsing": _WHOLE,
    "int_parsing_size": _WHOLE,
    "int_type": _WHOLE,
    "less_than": lambda context: f"must be below {_number(context['lt'])}",
    "less_than_equal": lambda context: f"must be at most {_number(context['le'])}",
    "list_type": "must be a list",
    "literal_error": lambda context: f"must be {context['expected']}",
    "string_pattern_mismatch": lambda context: f"must be {_FORMS.get(context['pattern'], context['pattern'])}",
    "string_type": _TEXT,
}
"""Message by pydantic's error type; the received value is appended."""


def fault(error: ErrorDetails | Mapping[str, Any]) -> str:
    """The fault of one value, to follow its name, without a full stop: "must be at least 1, not 0"."""
    kind, context = error["type"], error.get("ctx", {})
    if kind in _EXPECTED:
        expected = _EXPECTED[kind]
        words = expected if isinstance(expected, str) else expected(context)
        return f"{words}, not {shown(error['input'])}" if "input" in error else words
    if kind == "missing":
        return "is missing"
    # Lengths, and errors of this project's validators: the received value would not help, or is too long.
    words = str(error["msg"]).removeprefix("Value error, ").replace(" after validation", "")
    return re.sub(r"^(Input|Value|String|List) should (be|have)", r"must \2", words)


def first_fault(error: ValidationError) -> str:
    """The first error in a document and its location: "unknown.keep: must be at most 1, not 2"."""
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"]))
    return f"{where}: {fault(first)}" if where else fault(first)


def near(name: str, known: Iterable[str]) -> str:
    """A question that suggests the known name most similar to `name`; "" if none is similar."""
    found = difflib.get_close_matches(name[:NAME_CHARACTERS].lower(), list(known), n=1)
    return f"did you mean {found[0]!r}?" if found else ""


def _number(value: float) -> str:
    return f"{value:,g}" if value % 1 else f"{int(value):,}"


def shown(value: object) -> str:
    """A value of a client or a file in a message: at most some 40 characters of it."""
    return shortened(repr(value))


def shortened(text: str, most: int = _SHOWN_CHARACTERS) -> str:
    """The beginning of a text that is longer than `most` characters, and an ellipsis."""
    return text if len(text) <= most else f"{text[:most]}…"
