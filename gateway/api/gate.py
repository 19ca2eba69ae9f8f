"""The door: a request that would find the queue full is turned away before anything is done for it."""

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.api.problems import note, problem
from gateway.errors import Overloaded

PREDICT = "/predict"


class Gate:
    """Answers `POST /predict` with 503 `overloaded` while the queue is full.

    The service would say the same, but behind routing and validation, which at five times the capacity would be most
    of what the process does.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve or refuse one request; the body is not read."""
        if scope["type"] != "http" or scope["path"] != PREDICT or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        state = scope["state"]
        try:
            state["service"].admission.check()
        except Overloaded as error:
            note(state["event"], error)
            state["route"] = PREDICT
            await problem(error, state["request_id"])(scope, receive, send)
        else:
            await self._app(scope, receive, send)
