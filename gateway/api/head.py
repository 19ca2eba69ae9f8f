"""Serves HEAD as GET without the body (RFC 9110, 9.3.2), on every path that supports GET."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class HeadAsGet:
    """Serves HEAD requests as GET and drops the body; the headers, including Content-Length, are those of GET."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def send_without_body(message: Message) -> None:
            await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

        as_get = {**scope, "method": "GET"}
        try:
            await self._app(as_get, receive, send_without_body)
        finally:
            if "route" in as_get:
                scope["route"] = as_get["route"]  # for the log and the metrics
