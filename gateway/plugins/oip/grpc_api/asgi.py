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
    """A request; the parts of `body` follow each other."""

    method: str
    path: str
    headers: Headers
    client: tuple[str, int] | None = None
    body: Sequence[bytes | memoryview] = ()


@dataclass(frozen=True, slots=True)
class Response:
    """A response; the names of its headers are in lower case."""

    status: int
    headers: Mapping[bytes, bytes]
    body: bytes = field(repr=False)


async def send_request(app: App, state: Mapping[str, Any], request: Request) -> Response:
    """The application's response, with errors as problem documents; raises what the application raises.

    A cancellation tells the application that its client has disconnected, and waits for its end.
    """
    pieces = _pieces(request.body)
    gone = asyncio.Event()
    status = 0
    headers: dict[bytes, bytes] = {}
    body: list[bytes] = []
    is_sent = False

    async def receive() -> Message:
        nonlocal is_sent
        if is_sent:
            await gone.wait()
            return {"type": "http.disconnect"}
        piece = next(pieces, None)
        is_sent = piece is None
        return {"type": "http.request", "body": piece or b"", "more_body": not is_sent}

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
    return Response(status, headers, b"".join(body))


def _pieces(body: Sequence[bytes | memoryview]) -> Iterator[bytes]:
    for part in body:
        for begin in range(0, len(part), PIECE_BYTES):
            yield bytes(part[begin : begin + PIECE_BYTES])


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
