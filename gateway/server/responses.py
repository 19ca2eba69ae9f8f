"""Heads of HTTP/1.1 responses, and whole responses to what never becomes a request."""

import http
import uuid
from collections.abc import Iterable

from pydantic_core import to_json

from gateway.errors import PROBLEM_MEDIA_TYPE, GatewayError, Overloaded, problem_document

_STATUS_LINES = {status.value: b"HTTP/1.1 %d %b\r\n" % (status, status.phrase.encode()) for status in http.HTTPStatus}


def head(status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The status line and the headers, without the empty line behind them.

    Raises ValueError for a header with a line break or a NUL, which would begin another header or response.
    """
    lines = [b"%b: %b\r\n" % header for header in headers]
    text = b"".join(lines)
    if text.count(b"\n") != len(lines) or text.count(b"\r") != len(lines) or b"\0" in text:
        raise ValueError("a response header contains a line break or a NUL")
    return (_STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status) + text


def whole(status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> bytes:
    """A response that closes its connection."""
    length = b"content-length: %d\r\nconnection: close\r\n\r\n" % len(body)
    return head(status, headers) + length + body


def error_response(error: GatewayError) -> bytes:
    """The response to bytes that are no request, and to a request that is refused before it reaches the application."""
    headers = [(b"content-type", PROBLEM_MEDIA_TYPE.encode())]
    if isinstance(error, Overloaded):
        headers.append((b"retry-after", b"1"))
    return whole(int(error.status), headers, to_json(problem_document(error, uuid.uuid4().hex)))
