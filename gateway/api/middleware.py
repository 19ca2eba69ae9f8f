"""Pure ASGI middleware around every request."""

import asyncio
import os
import re
import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import structlog
from opentelemetry import context as trace_contexts
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect

from gateway import metrics, tracing
from gateway.api.auth import KeyCheck
from gateway.api.problems import note, problem
from gateway.api.request_context import KEY, RequestContext
from gateway.api.route_table import KnownRoute, RouteTable
from gateway.errors import GatewayError, InternalError, InvalidParameter, RateLimited, clear_frames
from gateway.hooks import RequestSpan, Spans
from gateway.inference.request_stats import RequestStats
from gateway.limits.caller import ANYONE, REFUSAL_SECONDS, Charges
from gateway.logs import AlreadyLogged

log = structlog.get_logger("gateway")

SWITCHED = HTTPStatus.SWITCHING_PROTOCOLS
"""Status in the log of a WebSocket that was opened."""
WEBSOCKET = "WEBSOCKET"
"""Method in the log of a WebSocket."""
STARTS = frozenset({"websocket.accept", "websocket.http.response.start"})
CLIENT_GONE = 499
"""Status in the log if no response was sent, as in nginx."""
MAX_LOGGED_CHARACTERS = 256
"""Longest text from a client in a log event; with all its fields, an event has at most 2 KiB."""
MAX_QUERY_PARAMETERS = 1_100
"""1,000 `labels` and all other parameters: parsing one costs far more than its two or three bytes suggest."""
SECURITY_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # Pages of other origins cannot embed a response; CORS decides whether they may read one.
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": "frame-ancestors 'self'",
}

PROTOCOL = "gateway.protocol"
"""Among the extensions of a scope: `name` of the protocol in which a request arrived, if that is not HTTP."""

_RAW_SECURITY_HEADERS = [(name.lower().encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]
_SECURITY_NAMES = frozenset(name for name, _ in _RAW_SECURITY_HEADERS)
_NO_STORE = (b"cache-control", b"no-store")
_OF_CLIENTS = frozenset({"method", "path", "model"})
_UNSAFE = re.compile(r"[^A-Za-z0-9._:/+=@-]")
_MAX_REQUEST_ID = 128
# Unknown paths come from clients and must not become labels.
_NO_ROUTE = "unmatched"


class SecurityHeaders:
    """Adds SECURITY_HEADERS to responses that do not set them, and prevents caching of results."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = dict(message["headers"])
                added = _RAW_SECURITY_HEADERS
                if not _SECURITY_NAMES.isdisjoint(given):
                    added = [header for header in added if header[0] not in given]
                headers = message["headers"] = [*message["headers"], *added]
                # A response with an ETag is a static file, which may be cached; all others must not be stored.
                if b"etag" not in given and b"cache-control" not in given:
                    headers.append(_NO_STORE)
            await send(message)

        await self._app(scope, receive, send_with_headers)


class RequestContextMiddleware:
    """Gives each request an id (the client's `X-Request-ID`, cleaned, or a new one), a log event, metrics and a trace.

    Refuses requests that need no routing for that: without a valid API key, while the queue is full, or with too many
    query parameters. Handles all errors: a GatewayError is reported by its status, any other exception is logged and
    reported by 500. Serves HEAD as GET without the body (RFC 9110, 9.3.2). With `spans`, POST requests get one.

    The handshake of a WebSocket is served like a request; what follows it is up to the route.
    """

    def __init__(
        self, app: ASGIApp, routes: RouteTable, keys: KeyCheck | None = None, spans: Spans | None = None
    ) -> None:
        self._app = app
        self._routes = routes
        self._keys = keys
        self._spans = spans

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] not in {"http", "websocket"}:
            await self._app(scope, receive, send)
            return
        context, span = self._begin(scope)
        log_fields, stats = context.log_fields, context.stats
        method = scope.get("method", WEBSOCKET)
        started = time.perf_counter()
        status = CLIENT_GONE

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = int(message["status"])
                message["headers"] = [
                    *message["headers"],
                    (b"x-request-id", context.request_id.encode()),
                    (b"server-timing", server_timing(stats.stages.seconds(started)).encode()),
                ]
                if context.charges.caller is not ANYONE:
                    message["headers"] += context.charges.caller.headers()
                if (draining := scope["state"].get("draining")) is not None and draining.begun:
                    message["headers"].append((b"connection", b"close"))
            elif method == "HEAD":
                message = {**message, "body": b""}
            elif message["type"] in STARTS:
                status = int(message.get("status", SWITCHED))
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", context.request_id.encode())]
            await send(message)

        try:
            self._admit(scope, context)
            if context.caller is not ANYONE:
                await _charge(scope, context)
            await self._serve(context.route, method, scope, receive, send_with_headers)
        except (ClientDisconnect, WebSocketDisconnect):
            context.note_disconnect()
        except Exception as exc:
            await _report(exc, context, scope, started=status != CLIENT_GONE)(scope, receive, send_with_headers)
        finally:
            context.release()
            times = stats.stages.seconds(started)
            route = context.route
            path = _NO_ROUTE if route is None else route.path
            metrics.series(metrics.REQUESTS, path, str(status), log_fields.get("code", "")).inc()
            if route is not None and route.traits.takes_images:
                for stage, seconds in times.items():
                    metrics.series(metrics.STAGE_SECONDS, stage).observe(seconds)
            if span is not None:
                span.finish(None if route is None else path, status, log_fields, stats)
            fields = {"method": method, "path": _logged_path(scope), **log_fields}
            if stats.received_bytes or stats.errors:
                _add_image_fields(fields, stats)
            fields["total_seconds"] = round(times.pop("total"), 6)
            for stage, seconds in times.items():
                fields[f"{stage}_seconds"] = round(seconds, 6)
            faulty = stats.fault is not None or (status == SWITCHED and "code" in log_fields)
            _log(status, fields, faulty=faulty, quiet=route is not None and route.traits.polled)

    def _begin(self, scope: Scope) -> tuple[RequestContext, RequestSpan | None]:
        """Create the context of a request, and continue the client's trace; if spans are exported, begin a new one."""
        request_id, traced = "", False
        for name, value in scope["headers"]:
            if name == b"x-request-id":
                request_id = request_id or _cleaned(value)
            elif name == b"traceparent":
                traced = True
        request_id = request_id or os.urandom(16).hex()
        state = scope.setdefault("state", {})
        # A copy: a context that refers to the mapping it is kept in would be garbage that only a collection finds.
        context = RequestContext(request_id, state.copy())
        state[KEY] = context
        if (protocol := (scope.get("extensions") or {}).get(PROTOCOL)) is not None:
            context.log_fields["protocol"] = protocol["name"]
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=request_id)
        exports = self._spans is not None and scope.get("method") == "POST"  # a WebSocket has none
        if not (exports or traced or trace_contexts.get_current()):
            return context, None
        joined, span = tracing.received(scope["headers"]), None
        if self._spans is not None and exports:
            span, own = self._spans.begin(scope, joined, request_id)
            joined = tracing.with_spans(self._spans, own)
        tracing.join(joined)
        if (trace_id := tracing.trace_id()) is not None:
            structlog.contextvars.bind_contextvars(trace_id=trace_id)
        return context, span

    def _admit(self, scope: Scope, context: RequestContext) -> None:
        """Find the route of a request; raises Unauthorized, Forbidden, Overloaded or InvalidParameter.

        While the queue is full, the service would refuse a request with images as well, but only after routing and
        validation, which take most of the processor time at five times the capacity.
        """
        path = scope["path"]
        route = self._routes.match(path)
        if self._keys is not None:
            self._keys.check(scope, context, self._routes.access(path, route))
        context.route = route
        if route is not None and route.traits.takes_images and scope.get("method") == "POST":
            context.service.admission.check(context.caller.share)
        if scope["query_string"].count(b"&") >= MAX_QUERY_PARAMETERS:
            raise InvalidParameter(f"The URL has more than {MAX_QUERY_PARAMETERS} parameters.")

    async def _serve(self, route: KnownRoute | None, method: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve an admitted request, by its endpoint itself if that is all that FastAPI would do."""
        if method == "HEAD":
            method = "GET"
            scope = {**scope, "method": method}
        if route is None or method not in route.methods:
            await self._app(scope, receive, send)
        elif route.traits.constant is not None:
            await route.traits.constant(scope, receive, send)
        elif route.traits.direct:
            response = await route.endpoint(Request(scope, receive, send))
            await response(scope, receive, send)
        else:
            await self._app(scope, receive, send)


async def _charge(scope: Scope, context: RequestContext) -> None:
    """Charge the first image of a request to its caller, before its body is read.

    Raises Forbidden if the caller may not use the route, and RateLimited after a pause.
    """
    route = context.route
    if route is None:
        return
    context.caller.check_route(route.path)
    if not (route.traits.takes_images and scope.get("method") == "POST"):
        return
    context.charges = charges = Charges(context.caller)
    try:
        await charges.begin(context.settings.max_wait_seconds, context.stats.stages)
    except RateLimited:
        await asyncio.sleep(REFUSAL_SECONDS)
        raise


def _report(exc: Exception, context: RequestContext, scope: Scope, *, started: bool) -> Response:
    """The response for an exception; raises AlreadyLogged if a part of another response is already sent.

    Then only closing the connection can signal the error.
    """
    if isinstance(exc, GatewayError) and not started:
        note(context.log_fields, exc)
        clear_frames(exc)
        return problem(exc, scope)
    log.exception("unexpected_error")
    error = InternalError()
    note(context.log_fields, error)
    if started:
        raise AlreadyLogged from exc
    return problem(error, scope)


def server_timing(times: Mapping[str, float]) -> str:
    """Convert seconds by stage to a Server-Timing header (W3C Server Timing), in milliseconds."""
    return ", ".join([f"{stage};dur={seconds * 1e3:.2f}" for stage, seconds in times.items()])


def _add_image_fields(fields: dict[str, object], stats: RequestStats) -> None:
    """Add the log fields about the images of a request whose body was read."""
    fields["images_ok"], fields["images_failed"] = stats.images_ok, stats.images_failed
    if stats.model_version:
        fields["model_version"] = stats.model_version
    if stats.errors:
        fields["errors"] = dict(stats.errors)
    if stats.fault is not None and stats.fault.__cause__ is not None:
        fields["cause"] = str(stats.fault.__cause__)
    fields["received_bytes"] = stats.received_bytes


def _logged_path(scope: Scope) -> str:
    """The path, percent-encoded if it has control characters, which the log would escape with six characters each."""
    path: str = scope["path"]
    return path if path.isprintable() else scope.get("raw_path", b"").decode("latin-1")


def _cleaned(request_id: bytes) -> str:
    """A client's request id without characters that may be unsafe in a log; it may become empty."""
    return _UNSAFE.sub("", request_id.decode("latin-1"))[:_MAX_REQUEST_ID]


def _log(status: int, fields: dict[str, Any], *, faulty: bool, quiet: bool) -> None:
    for name in _OF_CLIENTS & fields.keys():
        fields[name] = str(fields[name])[:MAX_LOGGED_CHARACTERS]
    if quiet:
        log.debug("request", status=status, **fields)
    elif status >= 500:
        log.error("request", status=status, **fields)
    elif status >= 400 or faulty:
        log.warning("request", status=status, **fields)
    else:
        log.info("request", status=status, **fields)
