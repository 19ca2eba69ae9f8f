"""The header with fields for the prediction log: NAME=VALUE,…, values percent-encoded, as in W3C Baggage."""

import re
from urllib.parse import unquote

from gateway.errors import InvalidParameter

MAX_FIELDS = 16
MAX_FIELDS_BYTES = 1_024
"""Upper bound of the header."""
_FIELD = re.compile(r"\s*([A-Za-z0-9_.-]{1,64})\s*=\s*([^\s,;\"\\]*)\s*")


def read_fields(text: str, header: str) -> dict[str, str]:
    """Parse the header; raises InvalidParameter."""
    if len(text) > MAX_FIELDS_BYTES:
        raise InvalidParameter(
            f"{header!r}: must have at most {MAX_FIELDS_BYTES} bytes.", limit="max_fields_bytes", value=MAX_FIELDS_BYTES
        )
    parts = text.split(",")
    if len(parts) > MAX_FIELDS:
        raise InvalidParameter(
            f"{header!r}: must have at most {MAX_FIELDS} fields.", limit="max_fields", value=MAX_FIELDS
        )
    fields: dict[str, str] = {}
    for part in parts:
        match = _FIELD.fullmatch(part)
        if match is None or match[1] in fields:
            raise InvalidParameter(
                f"{header!r}: must be NAME=VALUE with commas between, each name once and values percent-encoded, such "
                "as camera=7,site=berlin."
            )
        fields[match[1]] = unquote(match[2], errors="replace")
    return fields
