"""Responses that the server writes itself, without the application, and errors of headers."""

import uuid
from collections.abc import Sequence

from pydantic_core import to_json

from gateway.errors import PROBLEM_MEDIA_TYPE, GatewayError, HeadersTooLarge, Overloaded, problem_document
from gateway.server.cycle import head
from gateway.values.quantities import size


def whole(status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> bytes:
    """A response that closes its connection."""
    length = b"content-length: %d\r\nconnection: close\r\n\r\n" % len(body)
    return head(status, headers) + length + body


def error_response(error: GatewayError) -> bytes:
    """The response to bytes that are no request, and to a request that is refused before it reaches the application."""
    headers = [(b"content-type", PROBLEM_MEDIA_TYPE.encode())]
    if isinstance(error, Overloaded):
        headers.append((b"retry-after", b"1"))
    return whole(int(error.status), headers, to_json(problem_document(error, uuid.uuid4().hex)))


def headers_too_large(most: int) -> HeadersTooLarge:
    """The error of a request beyond `max_header_bytes`."""
    return HeadersTooLarge(
        f"The URL and the headers of a request may have {size(most)} each, and so may the sizes and trailers of a "
        f"body in chunks.",
        limit="max_header_bytes",
        value=most,
    )


def too_many_headers(most: int) -> HeadersTooLarge:
    """The error of a request beyond `max_headers`."""
    sentence = f"A request may have at most {most:,} headers, including trailers."
    return HeadersTooLarge(sentence, limit="max_headers", value=most)
