"""The door: a request that would find the queue full is turned away before anything is done for it."""

import re

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.api.problems import note, problem
from gateway.errors import Overloaded

CLASSIFYING_ROUTES = {
    "/predict": re.compile(r"/predict"),
    "/v2/models/{name}/infer": re.compile(r"/v2/models/[^/]+/infer"),
    "/v2/models/{name}/versions/{version}/infer": re.compile(r"/v2/models/[^/]+/versions/[^/]+/infer"),
}
"""Where images are sent, and the paths of each."""


class Gate:
    """Answers `POST` to CLASSIFYING_ROUTES with 503 `overloaded` while the queue is full.

    The service would say the same, but behind routing and validation, which at five times the capacity would be most
    of what the process does.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve or refuse one request; the body is not read."""
        route = _classifying_route(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if route is None:
            await self._app(scope, receive, send)
            return
        state = scope["state"]
        try:
            state["service"].admission.check()
        except Overloaded as error:
            note(state["event"], error)
            state["route"] = route
            await problem(error, scope)(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def _classifying_route(path: str) -> str | None:
    return next((route for route, paths in CLASSIFYING_ROUTES.items() if paths.fullmatch(path)), None)
