"""The headers of multipart/form-data (RFC 7578), in all the ways in which clients write them."""

import re
from collections.abc import Iterable, Mapping
from urllib.parse import unquote_to_bytes

from gateway.errors import InvalidMultipart

MAX_BOUNDARY_CHARACTERS = 70
IDENTITY_ENCODINGS = frozenset({"", "binary", "7bit", "8bit"})
# RFC 9110 section 5.6: a token, or a quoted string in which a backslash escapes the next character.
_ESCAPED = re.compile(r';[ \t]*([^\s=;"]+)[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.)*)"|([^\s;"]*))[ \t]*', re.DOTALL)
# Browsers send backslashes as they are (WHATWG HTML, multipart/form-data encoding algorithm), and one at the end of a
# name then looks like an escaped quote.
_LITERAL = re.compile(r';[ \t]*([^\s=;"]+)[ \t]*=[ \t]*(?:"([^"]*)"|([^\s;"]*))[ \t]*', re.DOTALL)
# Names that clients write without escaping them: a quote within quotes, or a space without quotes.
_FILENAME_BEGINS = re.compile(r";[ \t]*filename[ \t]*=", re.IGNORECASE)
_NEXT_PARAMETER = re.compile(r";[ \t]*(?:name|filename\*)[ \t]*=", re.IGNORECASE)
# Only these two are escapes: curl before 7.81 writes them, and "C:\new.jpg" comes from others.
_ESCAPE = re.compile(r'\\(["\\])')
# What that algorithm percent-encodes, and nothing else: a file may well be named "100%25.jpg". A name with
# other escapes, as aiohttp writes them, stays as it is, since the two cannot be told apart.
_PERCENT = re.compile(r"%(22|0[Dd]|0[Aa])")
_ANY_PERCENT = re.compile(r"%[0-9A-Fa-f]{2}")

MAX_HEADER_PARAMETERS = 32
MAX_NAME_CHARACTERS = 4_096
"""A longer file name is not unescaped: no path that a client could mean is longer."""
# The charsets that RFC 5987 requires. Python knows a hundred more; some take minutes to decode, and some fail.
_CHARSETS = {"": "utf-8", "utf-8": "utf-8", "utf8": "utf-8", "iso-8859-1": "latin-1"}
_NAME = r"[ !#$&-\[\]-~]{1,255}"  # ASCII without quotes, backslashes and percent signs
_FILENAME = r"[!#$&-.0-\[\]-~](?:[ !#$&-.0-\[\]-~]{0,253}[!#$&-.0-\[\]-~])?"  # nor with slashes, or spaces around it
PLAIN_PART = re.compile(
    rf'Content-Disposition: form-data; name="({_NAME})"(?:; filename="({_FILENAME})")?\r\n'
    r"(?:Content-Type: (?!multipart/)[a-z]+/[a-z0-9.+-]+\r\n)?"
)
"""The headers of nearly all parts. The groups name and filename are what `names_of` would return, and clean."""
PLAIN_TYPE = re.compile(r"multipart/form-data; boundary=([\w'()+,./:=?-]{1,70})", re.ASCII)
"""Nearly all requests' Content-Type, with the boundary: what `boundary_of` would return."""


def boundary_of(content_type: str) -> bytes:
    """The boundary in the Content-Type of a request; raises InvalidMultipart."""
    try:
        media_type, params = parse_header(content_type)
    except ValueError as exc:
        raise InvalidMultipart("The Content-Type of the request is malformed.") from exc
    boundary = params.get("boundary", "")
    if media_type != "multipart/form-data":
        raise InvalidMultipart("The Content-Type of the request is not multipart/form-data.")
    # RFC 2046 section 5.1.1
    if not 0 < len(boundary) <= MAX_BOUNDARY_CHARACTERS or not boundary.isascii() or not boundary.isprintable():
        raise InvalidMultipart("The Content-Type has no valid boundary parameter of 1 to 70 characters.")
    return boundary.encode()


def names_of(headerlist: Iterable[tuple[str, str]]) -> tuple[str, str | None]:
    """Check the headers of a part, whose names are in title case; returns its field name and its file name.

    Their bytes are decoded as Latin-1. The field name is empty for a file without one, and the file name None where the
    part is not a file. Raises InvalidMultipart.
    """
    headers: dict[str, str] = {}
    for header, value in headerlist:
        if header in headers:
            raise InvalidMultipart(f"A part has more than one {header} header.")
        headers[header] = value.encode("latin-1").decode(errors="replace")
    disposition, params = _disposition(headers.get("Content-Disposition", ""))
    content_type = headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if disposition != "form-data":
        raise InvalidMultipart("A part has no Content-Disposition: form-data header.")
    if content_type.startswith("multipart/"):
        raise InvalidMultipart("Nested multipart bodies are not accepted: send each file as a part of its own.")
    if headers.get("Content-Transfer-Encoding", "").strip().lower() not in IDENTITY_ENCODINGS:
        raise InvalidMultipart("Content-Transfer-Encoding is not accepted (RFC 7578 section 4.7): send the bytes.")
    name, filename = form_name(params), form_filename(params)
    if name is None and filename is None:
        raise InvalidMultipart("A part has neither a name nor a filename.")
    return name or "", filename


def _disposition(value: str) -> tuple[str, Mapping[str, str]]:
    """A Content-Disposition and its parameters; raises InvalidMultipart.

    Where they follow no grammar, the file name is all that stands behind `filename=`: a name costs no file its answer.
    """
    try:
        return parse_header(value)
    except ValueError as exc:
        begins = _FILENAME_BEGINS.search(value)
        if begins is None:
            raise InvalidMultipart("A part has malformed parameters in its headers.") from exc
        ends = _NEXT_PARAMETER.search(value, begins.end())
        text = value[begins.end() : None if ends is None else ends.start()].strip(" \t;")
        return value.partition(";")[0].strip().lower(), {"filename": text.removeprefix('"').removesuffix('"')}


def parse_header(value: str) -> tuple[str, Mapping[str, str]]:
    """Split a header into its first value and its parameters, both names in lower case.

    Of a repeated parameter the first counts. Raises ValueError where the parameters are malformed, or too many.
    """
    first = value.partition(";")[0]
    rest = value[len(first) :]
    params = _parameters(rest, _ESCAPED)
    if params is not None:
        if "\\" in rest:
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
    for _ in range(MAX_HEADER_PARAMETERS):
        if position == len(text):
            return params
        match = grammar.match(text, position)
        if match is None:
            return None
        name, quoted, token = match.groups()
        params.setdefault(name.lower(), token if quoted is None else quoted)
        position = match.end()
    return params if position == len(text) else None


def form_name(params: Mapping[str, str]) -> str | None:
    """The field name of a Content-Disposition; None where there is none."""
    name = params.get("name")
    return None if name is None else _unescape(name)


def form_filename(params: Mapping[str, str]) -> str | None:
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
    value = value[:MAX_NAME_CHARACTERS]
    if not all(map(_PERCENT.fullmatch, _ANY_PERCENT.findall(value))):
        return value
    return _PERCENT.sub(lambda match: chr(int(match.group(1), 16)), value)
