"""Header values with parameters, such as `form-data; name="files"; filename="cat.jpg"`."""

import re
from urllib.parse import unquote_to_bytes

# RFC 9110 section 5.6: a token, or a quoted string in which a backslash escapes the next character.
_ESCAPED = re.compile(r';[ \t]*([^\s=;"]+)[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.)*)"|([^\s;"]*))[ \t]*', re.DOTALL)
# Browsers send backslashes as they are (WHATWG HTML, multipart/form-data encoding algorithm), and one at the end of a
# name then looks like an escaped quote.
_LITERAL = re.compile(r';[ \t]*([^\s=;"]+)[ \t]*=[ \t]*(?:"([^"]*)"|([^\s;"]*))[ \t]*', re.DOTALL)
# Only these two are escapes: curl before 7.81 writes them, and "C:\new.jpg" comes from others.
_ESCAPE = re.compile(r'\\(["\\])')
# What that algorithm percent-encodes, and nothing else: a file may well be named "100%25.jpg".
_PERCENT = re.compile(r"%(22|0[Dd]|0[Aa])")

MAX_PARAMETERS = 32
MAX_NAME_CHARACTERS = 4_096
"""Of a name, more is not unescaped: no path that a client could mean is longer."""
# What RFC 5987 asks of a recipient. Python knows a hundred more, of which some take minutes and some fail.
_CHARSETS = {"": "utf-8", "utf-8": "utf-8", "utf8": "utf-8", "iso-8859-1": "latin-1"}


def parse_header(value: str) -> tuple[str, dict[str, str]]:
    """Split a header into its first value and its parameters, both names in lower case.

    Of a repeated parameter the first counts. Raises ValueError where the parameters are malformed, or too many.
    """
    first = value.partition(";")[0]
    rest = value[len(first) :]
    params = _parameters(rest, _ESCAPED)
    if params is not None:
        params = {name: _ESCAPE.sub(r"\1", text) for name, text in params.items()}
    else:
        params = _parameters(rest, _LITERAL)
    if params is None:
        raise ValueError("the header's parameters are malformed")
    return first.strip().lower(), params


def _parameters(text: str, grammar: re.Pattern[str]) -> dict[str, str] | None:
    """The parameters by their names in lower case; None where the text does not follow the grammar."""
    params: dict[str, str] = {}
    # A trailing semicolon is harmless and common.
    text, position = text.rstrip(" \t;"), 0
    for _ in range(MAX_PARAMETERS):
        if position == len(text):
            return params
        match = grammar.match(text, position)
        if match is None:
            return None
        name, quoted, token = match.groups()
        params.setdefault(name.lower(), token if quoted is None else quoted)
        position = match.end()
    return params if position == len(text) else None


def form_name(params: dict[str, str]) -> str | None:
    """The field name of a Content-Disposition; None where there is none."""
    name = params.get("name")
    return None if name is None else _unescape(name)


def form_filename(params: dict[str, str]) -> str | None:
    """The file name of a Content-Disposition; None if the part is not a file.

    `filename*` (RFC 5987) is preferred: RFC 7578 rules it out in forms, but clients send it for names beyond ASCII.
    With a charset other than UTF-8 or ISO-8859-1 it is ignored.
    """
    extended = params.get("filename*")
    if extended is not None:
        charset, _, rest = extended.partition("'")
        _, quote, encoded = rest.partition("'")
        codec = _CHARSETS.get(charset.lower())
        if quote and codec is not None:
            return unquote_to_bytes(encoded[:MAX_NAME_CHARACTERS]).decode(codec, errors="replace")
    plain = params.get("filename")
    if plain is None:
        return None if extended is None else ""
    return _unescape(plain)


def _unescape(value: str) -> str:
    return _PERCENT.sub(lambda match: chr(int(match.group(1), 16)), value[:MAX_NAME_CHARACTERS])
