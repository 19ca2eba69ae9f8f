"""Handles the rest of a request's body when the response is sent before its end."""

import asyncio
import contextlib

from starlette.types import ASGIApp, Message, Receive, Scope, Send

SMALL_BYTES = 2**20
"""A body that announces no more than that is left to the server, which reads past it and keeps the connection."""
DRAIN_BYTES = 32 * 2**20
DRAIN_SECONDS = 2.0


class UnreadBody:
    """Closes the connection after an answer that came before the end of a large body.

    A while is given to the client's last bytes: a connection that is closed with bytes unread is reset, and a reset may
    take the answer away before the client has seen it. Without an end the server would read for ever.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or not _may_be_large(scope):
            await self._app(scope, receive, send)
            return
        read = False

        async def receive_to_the_end() -> Message:
            nonlocal read
            message = await receive()
            read = read or not message.get("more_body", False)
            return message

        async def send_and_drain(message: Message) -> None:
            if read:
                await send(message)
            elif message["type"] == "http.response.start" and _is_fault(message):
                await send({**message, "headers": [*message["headers"], (b"connection", b"close")]})
            elif message["type"] == "http.response.body" and not message.get("more_body", False):
                await send({**message, "more_body": True})
                await _drain(receive_to_the_end)
                await send({"type": "http.response.body"})
            else:
                await send(message)

        await self._app(scope, receive_to_the_end, send_and_drain)


def _may_be_large(scope: Scope) -> bool:
    for name, value in scope["headers"]:
        if name == b"transfer-encoding":
            return True
        if name == b"content-length":
            return int(value) > SMALL_BYTES
    return False


def _is_fault(message: Message) -> bool:
    # Results that stream while the body still arrives are no fault, and the body is read to its end.
    return bool(message["status"] >= 400)


async def _drain(receive: Receive) -> None:
    left_bytes = DRAIN_BYTES
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_SECONDS):
            while left_bytes > 0:
                message = await receive()
                if not message.get("more_body", False):
                    return
                left_bytes -= len(message.get("body", b""))
