"""Checks of responses: their size is bounded, and members have the types that the gateway documents."""

import json
import math
from collections.abc import AsyncIterator
from typing import Any

import httpx

from gateway_client.errors import unexpected_answer

MAX_DOCUMENT_BYTES = 64 * 2**20
"""Bytes of a document or of one line of NDJSON: a result with its frames, or the labels of all models."""
MAX_PROBLEM_BYTES = 2**20
"""Bytes of a document that reports an error."""


async def pieces(response: httpx.Response) -> AsyncIterator[bytes]:
    """Yield a response's bytes as they arrive; raises ServiceError if they are compressed, perhaps a bomb."""
    if response.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise unexpected_answer(f"{response.url} sends a compressed response, although the request excludes that.")
    async for piece in response.aiter_bytes():
        yield piece


async def body_of(response: httpx.Response, max_bytes: int) -> bytes:
    """Read a whole response; raises ServiceError beyond the limit."""
    body = bytearray()
    async for piece in pieces(response):
        body += piece
        if len(body) > max_bytes:
            raise unexpected_answer(f"{response.url} sends more than {max_bytes >> 20} MiB; is the URL right?")
    return bytes(body)


async def lines_of(response: httpx.Response) -> AsyncIterator[bytes]:
    """Yield the lines of a response; raises ServiceError at a line longer than MAX_DOCUMENT_BYTES."""
    rest = bytearray()
    async for piece in pieces(response):
        begin = 0
        while (end := piece.find(b"\n", begin)) >= 0:
            rest += piece[begin:end]
            yield bytes(rest)
            rest.clear()
            begin = end + 1
        rest += piece[begin:]
        if len(rest) > MAX_DOCUMENT_BYTES:
            raise unexpected_answer(f"{response.url} sends a line of more than {MAX_DOCUMENT_BYTES >> 20} MiB.")
    if rest:
        yield bytes(rest)


class Malformed(ValueError):
    """A document does not have the form that the gateway documents."""


def parsed(data: bytes) -> dict[str, Any]:
    """Parse a JSON object; raises Malformed, also for NaN and infinities, which are not JSON."""
    try:
        document = json.loads(data.decode(), parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError) as exc:
        raise Malformed(f"it is not JSON: {exc}") from exc
    if not isinstance(document, dict):
        raise Malformed("it is not a JSON object")
    return document


def _refuse(name: str) -> float:
    raise Malformed(f"{name} is not a number")


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise Malformed("a number is too large")
    return value


def text(document: dict[str, Any], name: str) -> str:
    """A text member, with lone surrogates escaped, since no output format allows them; raises Malformed."""
    value = document.get(name)
    if not isinstance(value, str):
        raise Malformed(f"{name!r} is not a text")
    return value.encode(errors="backslashreplace").decode()


def optional_text(document: dict[str, Any], name: str) -> str | None:
    """A text, or None; raises Malformed."""
    return None if document.get(name) is None else text(document, name)


def integer(document: dict[str, Any], name: str) -> int:
    """A member that is a whole number of at least 0; raises Malformed."""
    value = document.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise Malformed(f"{name!r} is not a whole number")
    return value


def optional_integer(document: dict[str, Any], name: str) -> int | None:
    """A whole number, or None; raises Malformed."""
    return None if document.get(name) is None else integer(document, name)


def number(document: dict[str, Any], name: str) -> float:
    """A member that is a number; raises Malformed."""
    value = document.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool) or abs(value) > 1e300:
        raise Malformed(f"{name!r} is not a number")
    return value


def objects(document: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """A member that is a list of objects, empty where it is missing; raises Malformed."""
    value = document.get(name)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise Malformed(f"{name!r} is not a list of objects")
    return value


def texts(document: dict[str, Any], name: str) -> tuple[str, ...]:
    """A member that is a list of texts; raises Malformed."""
    value = document.get(name)
    if not isinstance(value, list):
        raise Malformed(f"{name!r} is not a list")
    return tuple(text({name: each}, name) for each in value)


def optional_object(document: dict[str, Any], name: str) -> dict[str, Any] | None:
    """A member that is an object, or None; raises Malformed."""
    value = document.get(name)
    if value is not None and not isinstance(value, dict):
        raise Malformed(f"{name!r} is not an object")
    return value
