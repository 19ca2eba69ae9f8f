"""Limits the number of query parameters: parsing one costs far more than its two or three bytes suggest."""

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.api.problems import note, problem
from gateway.api.request_context import request_context_of
from gateway.errors import InvalidParameter

MAX_QUERY_PARAMETERS = 1_100
"""1,000 `labels` and all other parameters."""


class QueryBound:
    """Responds with 422 `invalid_parameter` to more than MAX_QUERY_PARAMETERS; runs inside RequestContextMiddleware."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve or refuse one request; the body is not read."""
        if scope["type"] in {"http", "websocket"} and scope["query_string"].count(b"&") >= MAX_QUERY_PARAMETERS:
            error = InvalidParameter(f"The URL has more than {MAX_QUERY_PARAMETERS} parameters.")
            note(request_context_of(scope).event, error)
            await problem(error, scope)(scope, receive, send)
        else:
            await self._app(scope, receive, send)
