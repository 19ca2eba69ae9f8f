"""Header values with parameters, such as `form-data; name="files"; filename="cat.jpg"`."""

import re
from urllib.parse import unquote_to_bytes

# RFC 9110 section 5.6: a token, or a quoted string in which a backslash escapes the next character.
_PARAMETER = re.compile(r';[ \t]*([^\s=;"]+)[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.)*)"|([^\s;"]*))[ \t]*', re.DOTALL)
# Only these two are escapes: browsers send a Windows path's backslashes as they are (WHATWG HTML, multipart/form-data
# encoding algorithm), curl before 7.81 escapes quotes and backslashes.
_ESCAPE = re.compile(r'\\(["\\])')
# What that algorithm percent-encodes, and nothing else: a file may well be named "100%25.jpg".
_PERCENT = re.compile(r"%(22|0[Dd]|0[Aa])")


def parse_header(value: str) -> tuple[str, dict[str, str]]:
    """Split a header into its first value and its parameters, both names in lower case.

    Of a repeated parameter the first counts. Raises ValueError where the parameters are malformed.
    """
    first = value.partition(";")[0]
    position, params = len(first), dict[str, str]()
    while position < len(value):
        match = _PARAMETER.match(value, position)
        if match is None:
            # A trailing semicolon is harmless and common.
            if value[position:].strip(" \t;") == "":
                break
            raise ValueError("the header's parameters are malformed")
        name, quoted, token = match.groups()
        params.setdefault(name.lower(), token if quoted is None else _ESCAPE.sub(r"\1", quoted))
        position = match.end()
    return first.strip().lower(), params


def form_filename(params: dict[str, str]) -> str | None:
    """The file name of a Content-Disposition; None where the part is no file.

    `filename*` (RFC 5987) is preferred: RFC 7578 rules it out in forms, but clients send it for names beyond ASCII.
    """
    extended = params.get("filename*")
    if extended is not None:
        charset, _, rest = extended.partition("'")
        _, quote, encoded = rest.partition("'")
        if quote:
            try:
                return unquote_to_bytes(encoded).decode(charset or "utf-8", errors="replace")
            except LookupError:
                pass
    plain = params.get("filename")
    if plain is None:
        return None if extended is None else ""
    return _PERCENT.sub(lambda match: chr(int(match.group(1), 16)), plain)
