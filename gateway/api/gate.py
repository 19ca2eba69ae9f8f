"""Early load shedding: requests are refused before any other work while the queue is full."""

import re

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.api.problems import note, problem
from gateway.api.request_context import request_context_of
from gateway.api.state import parts_of
from gateway.errors import Overloaded
from gateway.metrics import CLASSIFYING_ROUTES

_PATHS = {route: re.compile(re.sub(r"\{\w+\}", "[^/]+", route)) for route in CLASSIFYING_ROUTES}


class Gate:
    """Responds to `POST` to CLASSIFYING_ROUTES with 503 `overloaded` while the queue is full.

    The service would refuse the request as well, but only after routing and validation, which take most of the
    processor time at five times the capacity.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve or refuse one request; the body is not read."""
        route = _classifying_route(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if route is None:
            await self._app(scope, receive, send)
            return
        try:
            parts_of(scope)["service"].admission.check()
        except Overloaded as error:
            context = request_context_of(scope)
            note(context.event, error)
            context.route = route
            await problem(error, scope)(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def _classifying_route(path: str) -> str | None:
    return next((route for route, paths in _PATHS.items() if paths.fullmatch(path)), None)
