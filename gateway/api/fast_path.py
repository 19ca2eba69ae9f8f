"""A way for the route that every image takes, past FastAPI's routing and dependencies: a fifth of what a request costs.

FastAPI has the route as well, for its documents and for whatever comes another way.
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
    """Answers `POST` to the paths of `endpoints`; what they raise is answered as FastAPI would, by the app's handlers.

    It stands innermost, inside of RequestContext, whose exchange gets the route.
    """

    def __init__(self, app: ASGIApp, endpoints: Mapping[str, Endpoint], handlers: Mapping[Any, Any]) -> None:
        self._app = app
        self._endpoints = endpoints
        self._answer = ExceptionMiddleware(self._ask, handlers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] == "http" and scope["method"] == "POST" and scope["path"] in self._endpoints:
            await self._answer(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _ask(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        request_context_of(scope).route = path
        response = await self._endpoints[path](Request(scope, receive, send))
        await response(scope, receive, send)
