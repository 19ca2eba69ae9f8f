"""Headers that keep browsers from making more of an answer than it is."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

SECURITY_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # Pages of other origins cannot embed an answer; whether they may read one is up to CORS.
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": "frame-ancestors 'self'",
}
_RAW = [(name.lower().encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]


class SecurityHeaders:
    """Adds SECURITY_HEADERS to every answer that does not have its own, and keeps results out of every cache."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name for name, _ in message["headers"]}
                added = [header for header in _RAW if header[0] not in given]
                # What has an ETag is a file of a page, which may be asked for again; the rest is true only now.
                if given.isdisjoint((b"etag", b"cache-control")):
                    added.append((b"cache-control", b"no-store"))
                message["headers"] = [*message["headers"], *added]
            await send(message)

        await self._app(scope, receive, send_with_headers)
