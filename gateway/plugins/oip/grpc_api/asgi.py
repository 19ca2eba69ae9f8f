"""Requests to the ASGI application of this process, without a connection."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
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
class Response:
    """A response; the names of its headers are in lower case."""

    status: int
    headers: Mapping[bytes, bytes]
    body: bytes = field(repr=False)


async def send_request(
    app: App,
    state: Mapping[str, Any],
    method: str,
    path: str,
    headers: Headers,
    client: tuple[str, int] | None,
    body: Sequence[bytes | memoryview] = (),
) -> Response:
    """The application's response, with errors as problem documents; raises what the application raises.

    The parts of `body` follow each other. A cancellation tells the application that its client has disconnected, and
    waits for its end.
    """
    pieces = (bytes(part[at : at + PIECE_BYTES]) for part in body for at in range(0, len(part), PIECE_BYTES))
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "2",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": quote(path).encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [
            *headers,
            (b"accept", PROBLEM_MEDIA_TYPE.encode()),
            (b"content-length", str(sum(map(len, body))).encode()),
        ],
        "client": client,
        "server": None,
        "state": dict(state),
        "extensions": {PROTOCOL: {"name": "grpc"}},
    }
    gone = asyncio.Event()
    status = 0
    response_headers: dict[bytes, bytes] = {}
    response_body: list[bytes] = []
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
            response_headers.update(message["headers"])
        elif message["type"] == "http.response.body":
            response_body.append(message.get("body", b""))

    task = asyncio.ensure_future(app(scope, receive, send))
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        gone.set()
        with suppress(Exception):  # the application has logged it
            await task
        raise
    return Response(status, response_headers, b"".join(response_body))
