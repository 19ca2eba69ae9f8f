"""Pure ASGI middleware around every request."""

import asyncio
import re
import time
import uuid
from collections.abc import Callable, MutableMapping
from typing import Any

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway import metrics
from gateway.api.problems import problem
from gateway.errors import InternalError

log = structlog.get_logger("gateway")

CLIENT_GONE = 499
"""Logged where no answer was sent, in nginx's way."""

_UNSAFE = re.compile(r"[^A-Za-z0-9._:/+=@-]")
_MAX_REQUEST_ID = 128
# Paths that a client may make up must not become labels.
_NO_ROUTE = "unmatched"


class RequestContext:
    """Gives each request an id (the client's `X-Request-ID`, cleaned, or a new one), a log event and metrics.

    Handlers add fields to `scope["state"]["event"]`, stage times in seconds to `scope["state"]["timings"]`, and what is
    to be done when the answer is out, whatever it was, to `scope["state"]["at_end"]`.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(scope)
        event: dict[str, Any] = {"method": scope["method"], "path": scope["path"]}
        state: MutableMapping[str, Any] = scope.setdefault("state", {})
        timings: dict[str, float] = {}
        at_end: list[Callable[[], None]] = []
        state.update(request_id=request_id, event=event, timings=timings, body_read=asyncio.Event(), at_end=at_end)
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=request_id)
        started = time.perf_counter()
        status = CLIENT_GONE

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                timings["total"] = time.perf_counter() - started
                message["headers"] += [
                    (b"x-request-id", request_id.encode()),
                    (b"server-timing", server_timing(timings).encode()),
                ]
                if state.get("draining"):
                    message["headers"].append((b"connection", b"close"))
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        except Exception:
            log.exception("unexpected_error")
            if status != CLIENT_GONE:
                raise  # half an answer is out: only closing the connection can tell the client
            await problem(InternalError(), request_id)(scope, receive, send_with_headers)
        finally:
            for callback in at_end:
                callback()
            timings["total"] = time.perf_counter() - started
            route = state.get("route") or getattr(scope.get("route"), "path", _NO_ROUTE)
            metrics.REQUESTS.labels(route, str(status)).inc()
            if route == "/predict":
                for stage, seconds in timings.items():
                    metrics.STAGE_SECONDS.labels(stage).observe(seconds)
            _log(event, status, timings, quiet=route in {"/health/live", "/health/ready", "/metrics"})


def server_timing(timings: dict[str, float]) -> str:
    """The stages as a Server-Timing header (W3C Server Timing): durations in milliseconds."""
    return ", ".join(f"{stage};dur={seconds * 1e3:.2f}" for stage, seconds in timings.items())


def _request_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            given = _UNSAFE.sub("", value.decode("latin-1"))[:_MAX_REQUEST_ID]
            if given:
                return given
    return uuid.uuid4().hex


def _log(event: dict[str, Any], status: int, timings: dict[str, float], *, quiet: bool) -> None:
    times = {f"{stage}_seconds": round(seconds, 6) for stage, seconds in timings.items()}
    if status >= 500:
        log.error("request", status=status, **event, **times)
    elif status >= 400:
        log.warning("request", status=status, **event, **times)
    elif quiet:
        log.debug("request", status=status, **event, **times)
    else:
        log.info("request", status=status, **event, **times)
