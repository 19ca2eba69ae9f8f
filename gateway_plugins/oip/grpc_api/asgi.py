"""Requests to the ASGI application of this process, without a connection."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from gateway.api.middleware import PROTOCOL
from gateway.errors import PROBLEM_MEDIA_TYPE

Message = MutableMapping[str, Any]
App = Callable[
    [MutableMapping[str, Any], Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]
]
Headers = Sequence[tuple[bytes, bytes]]

PIECE_BYTES = 256 * 1024
"""How much of a body the application gets at a time, as from a connection."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request; `body` is sent in its order, with the header Content-Length."""

    method: str
    path: str
    headers: Headers
    client: tuple[str, int] | None = None
    body: Sequence[bytes | memoryview] = ()


@dataclass(frozen=True, slots=True)
class Response:
    """A response; the names of its headers are in lower case. The body is in the pieces that the application sent."""

    status: int
    headers: Mapping[bytes, bytes]
    pieces: Sequence[bytes] = field(repr=False)

    @property
    def body(self) -> bytes:
        """The body as one piece, for small ones."""
        return b"".join(self.pieces)


async def send_request(app: App, state: Mapping[str, Any], request: Request) -> Response:
    """The application's response, with errors as problem documents; raises what the application raises.

    A cancellation tells the application that its client has disconnected, and waits for its end.
    """
    pieces = _pieces(request.body)
    left_bytes = sum(map(len, request.body))
    is_sent = False
    gone = asyncio.Event()
    status = 0
    headers: dict[bytes, bytes] = {}
    body: list[bytes] = []

    async def receive() -> Message:
        nonlocal is_sent, left_bytes
        if not is_sent:
            piece = next(pieces, b"")
            left_bytes -= len(piece)
            is_sent = not left_bytes
            return {"type": "http.request", "body": piece, "more_body": not is_sent}
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = int(message["status"])
            headers.update(message["headers"])
        elif message["type"] == "http.response.body":
            body.append(message.get("body", b""))

    task = asyncio.ensure_future(app(_scope(state, request), receive, send))
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        gone.set()
        with suppress(Exception):  # the application has logged it
            await task
        raise
    return Response(status, headers, body)


def _pieces(body: Sequence[bytes | memoryview]) -> Iterator[bytes]:
    """The body in pieces of at most PIECE_BYTES; short parts are joined."""
    joined = bytearray()
    for part in body:
        if len(joined) + len(part) <= PIECE_BYTES:
            joined += part
            continue
        if joined:
            yield bytes(joined)
            joined.clear()
        for begin in range(0, len(part), PIECE_BYTES):
            yield bytes(part[begin : begin + PIECE_BYTES])
    if joined:
        yield bytes(joined)


def _scope(state: Mapping[str, Any], request: Request) -> dict[str, Any]:
    length = str(sum(map(len, request.body))).encode()
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "2",
        "method": request.method,
        "scheme": "http",
        "path": request.path,
        "raw_path": quote(request.path).encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [*request.headers, (b"accept", PROBLEM_MEDIA_TYPE.encode()), (b"content-length", length)],
        "client": request.client,
        "server": None,
        "state": dict(state),
        "extensions": {PROTOCOL: {"name": "grpc"}},
    }
