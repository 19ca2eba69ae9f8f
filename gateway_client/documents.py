"""Responses: their size is bounded, and a document of another form is an error."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from gateway_client.errors import unexpected_answer

MAX_DOCUMENT_BYTES = 64 * 2**20
"""Bytes of a document or of one line of NDJSON: a result, or the labels of all models."""
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


def parsed(data: str | bytes) -> dict[str, Any]:
    """Parse a JSON object; raises Malformed."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise Malformed(f"it is not JSON: {exc}") from exc
    if not isinstance(document, dict):
        raise Malformed("it is not a JSON object")
    return document


@contextmanager
def reading() -> Iterator[None]:
    """Convert exceptions at members of a document of another form to Malformed."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as exc:
        raise Malformed(f"it has another form: {type(exc).__name__} {exc}") from exc
