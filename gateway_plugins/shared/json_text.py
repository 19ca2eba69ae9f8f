"""The decoder for all JSON that clients send (RFC 8259): request bodies, their parts, and messages of streams.

Unlike the standard library's decoder it refuses values that later code could not handle: lone surrogates, which cannot
be encoded; NaN and Infinity, which are not JSON; numbers without a finite value; duplicate names in one object; and
deep nesting. Raw control characters within strings are accepted.
"""

import json
import math
from collections.abc import Iterable
from typing import Any, NoReturn

from gateway.values.quantities import size

MAX_DEPTH = 16
"""Maximum nesting of arrays and objects; no request needs more than five levels."""
MAX_DIGITS = 4_300
"""Maximum digits of a whole number; Python's own limit (`sys.int_info.default_max_str_digits`)."""
SURROGATE = "a string has a lone surrogate, which no Unicode text contains"


class JsonError(ValueError):
    """The text is not JSON, or is JSON that is not accepted; the message states the reason, for the client."""


def decode(text: str | bytes | bytearray, *, max_bytes: int) -> object:
    """Decode a text of at most `max_bytes` bytes (characters for a `str`); raises JsonError."""
    if len(text) > max_bytes:
        most = f"{max_bytes:,} characters" if isinstance(text, str) else size(max_bytes)
        raise JsonError(f"it has more than {most}")
    try:
        whole = text if isinstance(text, str) else text.decode()
    except UnicodeDecodeError:
        raise JsonError("it is not UTF-8") from None
    try:
        value = _DECODER.decode(whole)
    except RecursionError:
        raise _too_deep() from None
    except JsonError:
        raise
    except ValueError:
        raise JsonError("a value is not JSON") from None
    _check(value)
    return value


def decode_string(raw: str) -> str:
    """Decode the characters between the quotes of a JSON string; raises JsonError."""
    text = unescape(raw)
    if _has_surrogate(text):
        raise JsonError(SURROGATE)
    return text


def unescape(raw: str) -> str:
    """Like `decode_string`, but allows lone surrogates: for base64, which is validated later."""
    try:
        text: str = json.loads(f'"{raw}"', strict=False)
    except ValueError:
        raise JsonError("a string has a bad escape") from None
    return text


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise JsonError("an object has two members of one name")
    return members


def _constant(name: str) -> NoReturn:
    raise JsonError(f"{name} is not JSON")


def _real(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise JsonError("a number is out of range")
    return number


def _whole(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise JsonError(f"a number has more than {MAX_DIGITS} digits")
    return int(digits)


_DECODER = json.JSONDecoder(
    object_pairs_hook=_members, parse_constant=_constant, parse_float=_real, parse_int=_whole, strict=False
)


def _check(value: object) -> None:
    """Check every name, string and level; raises JsonError."""
    level: Iterable[object] = (value,)
    for depth in range(MAX_DEPTH + 1):
        below: list[object] = []
        for each in level:
            if isinstance(each, str):
                if _has_surrogate(each):
                    raise JsonError(SURROGATE)
            elif isinstance(each, dict | list) and depth == MAX_DEPTH:
                raise _too_deep()
            elif isinstance(each, dict):
                below += each
                below += each.values()
            elif isinstance(each, list):
                below += each
        level = below


def _has_surrogate(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _too_deep() -> JsonError:
    return JsonError(f"it is nested more than {MAX_DEPTH} deep")
