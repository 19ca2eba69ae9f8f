"""Pure ASGI middleware around every request."""

import asyncio
import logging
import os
import re
import time
from http import HTTPStatus
from typing import Any

import structlog
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect

from gateway import metrics, tracing
from gateway.api.auth import KeyCheck
from gateway.api.origins import OriginCheck
from gateway.api.problems import report
from gateway.api.request_context import KEY, RequestContext
from gateway.api.route_table import RouteTable
from gateway.api.security_headers import DEFAULT_HEADERS, SETTLED, missing
from gateway.errors import InvalidParameter, RateLimited
from gateway.inference.request_stats import RequestStats
from gateway.limits.caller import ANYONE, REFUSAL_SECONDS, Charges

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
PROTOCOL = "gateway.protocol"
"""Among the extensions of a scope: `name` of the protocol in which a request arrived, if that is not HTTP."""

_OF_CLIENTS = frozenset({"method", "path", "model"})
_UNSAFE = re.compile(r"[^A-Za-z0-9._:/+=@-]")
_MAX_REQUEST_ID = 128
# Unknown paths come from clients and must not become labels.
_NO_ROUTE = "unmatched"


class RequestContextMiddleware:
    """Gives each request an id (the client's `X-Request-ID`, cleaned, or a new one), a log event, metrics and a trace.

    Refuses requests that need no routing for that: of other origins' pages, without a valid API key, while the queue is
    full, or with too many query parameters. Handles all errors: a GatewayError is reported by its status, any other
    exception is logged and reported by 500. Serves HEAD as GET without the body (RFC 9110, 9.3.2).

    The handshake of a WebSocket is served like a request; what follows it is up to the route.
    """

    def __init__(
        self, app: ASGIApp, routes: RouteTable, keys: KeyCheck | None = None, origins: OriginCheck | None = None
    ) -> None:
        self._app = app
        self._routes = routes
        self._keys = keys
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] not in {"http", "websocket"}:
            await self._app(scope, receive, send)
            return
        context = self._begin(scope)
        log_fields, stats = context.log_fields, context.stats
        method = scope.get("method", WEBSOCKET)
        started = time.perf_counter()
        status = CLIENT_GONE

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = int(message["status"])
                headers = message["headers"]
                added = DEFAULT_HEADERS if SETTLED.isdisjoint(dict(headers)) else missing(headers)
                # W3C Server Timing, in milliseconds.
                if stats.stages:
                    times = stats.stages.seconds(started)
                    timing = ", ".join([f"{name};dur={1e3 * seconds:.2f}" for name, seconds in times.items()])
                else:
                    timing = f"total;dur={1e3 * (time.perf_counter() - started):.2f}"
                message["headers"] = [
                    *headers,
                    *added,
                    (b"x-request-id", context.request_id.encode()),
                    (b"server-timing", timing.encode()),
                ]
                if context.charges.caller is not ANYONE:
                    message["headers"] += context.charges.caller.headers()
                if (draining := scope["state"].get("draining")) is not None and draining.closes:
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
            route = context.route
            if method == "HEAD":
                scope = {**scope, "method": "GET"}
            # An endpoint is called itself if that is all that FastAPI would do.
            if route is None or scope.get("method") not in route.methods:
                await self._app(scope, receive, send_with_headers)
            elif route.traits.constant is not None:
                await route.traits.constant(scope, receive, send_with_headers)
            elif route.traits.direct:
                response = await route.endpoint(Request(scope, receive, send_with_headers))
                await response(scope, receive, send_with_headers)
            else:
                await self._app(scope, receive, send_with_headers)
        except (ClientDisconnect, WebSocketDisconnect):
            context.note_disconnect()
        except Exception as exc:
            await report(exc, scope, started=status != CLIENT_GONE)(scope, receive, send_with_headers)
        finally:
            for lease in context.leases:
                lease.release()
            route = context.route
            path = _NO_ROUTE if route is None else route.path
            metrics.series(metrics.REQUESTS, path, str(status), log_fields.get("code", "")).inc()
            if route is None or not route.traits.polled or log.is_enabled_for(logging.DEBUG):
                times = stats.stages.seconds(started)
                if route is not None and route.traits.takes_images:
                    for stage, seconds in times.items():
                        metrics.series(metrics.STAGE_SECONDS, stage).observe(seconds)
                fields = {"method": method, "path": "", **log_fields}
                _log(scope, fields, status, stats, times, polled=route is not None and route.traits.polled)

    def _begin(self, scope: Scope) -> RequestContext:
        """Create the context of a request, and continue the client's trace."""
        request_id, traced = "", False
        for name, value in scope["headers"]:
            if name == b"x-request-id":
                request_id = request_id or _cleaned(value)
            elif name == b"traceparent":
                traced = True
        request_id = request_id or os.urandom(16).hex()
        state = scope.setdefault("state", {})
        # A copy: a context that refers to the mapping it is kept in would be garbage that only a collection finds.
        shared = state.copy()
        context = RequestContext(request_id, shared, shared.get("settings"), shared.get("service"))
        state[KEY] = context
        if (protocol := (scope.get("extensions") or {}).get(PROTOCOL)) is not None:
            context.log_fields["protocol"] = protocol["name"]
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=request_id)
        if traced or tracing.current():
            tracing.join(scope["headers"])
            if (trace_id := tracing.trace_id()) is not None:
                structlog.contextvars.bind_contextvars(trace_id=trace_id)
        return context

    def _admit(self, scope: Scope, context: RequestContext) -> None:
        """Find the route of a request; raises Unauthorized, Forbidden, Overloaded or InvalidParameter.

        While the queue is full, the service would refuse a request with images as well, but only after routing and
        validation, which take most of the processor time at five times the capacity.
        """
        if self._origins is not None:
            self._origins.check(scope)
        path = scope["path"]
        route = self._routes.literal.get(path) or self._routes.match(path)
        if route is not None and tracing.current():
            tracing.describe(scope.get("method", WEBSOCKET), route.path, context.request_id)
        if self._keys is not None:
            self._keys.check(scope, context, self._routes.access(path, route))
        context.route = route
        if route is not None and route.traits.takes_images and scope.get("method") == "POST":
            context.service.admission.check(context.caller.share)
        if scope["query_string"].count(b"&") >= MAX_QUERY_PARAMETERS:
            raise InvalidParameter(f"The URL has more than {MAX_QUERY_PARAMETERS} parameters.")


async def _charge(scope: Scope, context: RequestContext) -> None:
    """Charge the first image of a request to its caller, before its body is read.

    Raises Forbidden if the caller may not use the route, and RateLimited after a pause.
    """
    route = context.route
    if route is None:
        return
    context.caller.check_route(route.path, takes_images=route.traits.takes_images)
    if not (route.traits.takes_images and scope.get("method") == "POST"):
        return
    context.charges = charges = Charges(context.caller)
    try:
        await charges.begin(context.settings.max_wait_seconds, context.stats.stages)
    except RateLimited:
        await asyncio.sleep(REFUSAL_SECONDS)
        raise


def _cleaned(request_id: bytes) -> str:
    """A client's request id without characters that may be unsafe in a log; it may become empty."""
    return _UNSAFE.sub("", request_id.decode("latin-1"))[:_MAX_REQUEST_ID]


def _log(
    scope: Scope,
    fields: dict[str, Any],
    status: int,
    stats: RequestStats,
    times: dict[str, float],
    *,
    polled: bool,
) -> None:
    """Log a request with its path, its images if its body was read, and its times."""
    path: str = scope["path"]
    # A control character would be escaped with six characters.
    fields["path"] = path if path.isprintable() else scope.get("raw_path", b"").decode("latin-1")
    for name in _OF_CLIENTS & fields.keys():
        fields[name] = str(fields[name])[:MAX_LOGGED_CHARACTERS]
    if stats.received_bytes or stats.errors:
        fields["images_ok"], fields["images_failed"] = stats.images_ok, stats.images_failed if stats.errors else 0
        if stats.model_version:
            fields["model_version"] = stats.model_version
        if stats.errors:
            fields["errors"] = dict(stats.errors)
        if stats.fault is not None and stats.fault.__cause__ is not None:
            fields["cause"] = str(stats.fault.__cause__)
        fields["received_bytes"] = stats.received_bytes
    fields["total_seconds"] = round(times.pop("total"), 6)
    for stage, seconds in times.items():
        fields[f"{stage}_seconds"] = round(seconds, 6)
    if polled:
        log.debug("request", status=status, **fields)
    elif status >= 500:
        log.error("request", status=status, **fields)
    elif status >= 400 or stats.fault is not None or (status == SWITCHED and "code" in fields):
        log.warning("request", status=status, **fields)
    else:
        log.info("request", status=status, **fields)
