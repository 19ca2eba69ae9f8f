"""Serves the busiest route without FastAPI's routing and dependencies, a fifth of the cost of a request.

The route is also registered with FastAPI, for the OpenAPI document and for requests that do not match here.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.api.request_context import request_context_of

Endpoint = Callable[[Request], Awaitable[Response]]


class FastPath:
    """Serves `POST` to the paths of `endpoints`; the exception handlers of the app handle their errors.

    The innermost middleware; sets the route of the request context.
    """

    def __init__(self, app: ASGIApp, endpoints: Mapping[str, Endpoint], handlers: Mapping[Any, Any]) -> None:
        self._app = app
        self._endpoints = endpoints
        self._serve = ExceptionMiddleware(self._call_endpoint, handlers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] == "http" and scope["method"] == "POST" and scope["path"] in self._endpoints:
            await self._serve(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _call_endpoint(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        request_context_of(scope).route = path
        response = await self._endpoints[path](Request(scope, receive, send))
        await response(scope, receive, send)
