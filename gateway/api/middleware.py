"""The five ASGI middlewares around every request, the outermost first; see `middleware`.

    ResponseHeaders    id, context and trace of a request; headers of its response
    RequestLog         its log event and its metrics
    Errors             an exception becomes a response, and the request releases what it holds
    AccessCheck        its route; refuses pages of other origins, and requests without a valid API key
    LimitCheck         refuses requests while the queue is full, and beyond the limits of the API key

`DirectRoutes` then calls some endpoints itself, before FastAPI's router. The five share the request's RequestContext.
"""

import asyncio
import logging
import os
import re
import socket
import time
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from http import HTTPStatus

import structlog
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect

from gateway import metrics, tracing
from gateway.api.auth import KeyCheck
from gateway.api.problems import report
from gateway.api.request_context import CLIENT_GONE, CONTEXT, RequestContext
from gateway.api.route_table import WEBSOCKET, Access, RouteTable
from gateway.errors import Forbidden, InvalidParameter, MethodNotAllowed, NotFound, RateLimited
from gateway.hooks import Runtime
from gateway.limits.caller import ANYONE, REFUSAL_SECONDS
from gateway.settings import Settings, variable
from gateway.values.clients import is_address
from gateway.values.validation import NAME_CHARACTERS, shown

log = structlog.get_logger("gateway")

SECURITY_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # Pages of other origins cannot embed a response; CORS decides whether they may read one.
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": "frame-ancestors 'self'",
}
NO_STORE = (b"cache-control", b"no-store")
DEFAULT_HEADERS = [*((name.lower().encode(), value.encode()) for name, value in SECURITY_HEADERS.items()), NO_STORE]
"""Headers of a response that sets none of SETTLED itself."""
SETTLED = frozenset({*(name for name, _ in DEFAULT_HEADERS), b"etag"})

Headers = Iterable[tuple[bytes, bytes]]

SWITCHED = HTTPStatus.SWITCHING_PROTOCOLS
"""Status in the log of a WebSocket that was opened."""
STARTS = frozenset({"websocket.accept", "websocket.http.response.start"})
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


class ResponseHeaders:
    """Gives each request an id (the client's `X-Request-ID`, cleaned, or a new one), a context and a trace.

    Adds to each response the id, the times of its stages, and the headers of security and of the caller's rate. The
    handshake of a WebSocket is served like a request; what follows it is up to the route.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] == "lifespan":
            await scope["app"].router(scope, receive, send)  # it concerns no request
            return
        request_id, traced = "", False
        for name, value in scope["headers"]:
            if name == b"x-request-id":
                request_id = request_id or _cleaned(value)
            elif name == b"traceparent":
                traced = True
        request_id = request_id or os.urandom(16).hex()
        state = scope["state"]
        runtime: Runtime = state["runtime"]
        reader = state.get("reader")
        context = state[CONTEXT] = RequestContext(request_id, runtime, runtime.settings, runtime.service, reader)
        if (protocol := (scope.get("extensions") or {}).get(PROTOCOL)) is not None:
            context.log_fields["protocol"] = protocol["name"]
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=request_id)
        if traced or tracing.current():
            tracing.join(scope["headers"])
            if (trace_id := tracing.trace_id()) is not None:
                structlog.contextvars.bind_contextvars(trace_id=trace_id)
        is_head, stats = scope.get("method") == "HEAD", context.stats

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                context.status = int(message["status"])
                headers = message["headers"]
                added = DEFAULT_HEADERS if SETTLED.isdisjoint(dict(headers)) else missing(headers)
                # W3C Server Timing, in milliseconds.
                timing = ""
                for name, seconds in stats.seconds(context.started).items() if stats.stages else ():
                    timing += f"{name};dur={1e3 * seconds:.2f}, "
                timing = timing[:-2] or f"total;dur={1e3 * (time.perf_counter() - context.started):.2f}"
                message["headers"] = [
                    *headers,
                    *added,
                    (b"x-request-id", request_id.encode()),
                    (b"server-timing", timing.encode()),
                ]
                if context.charged:
                    message["headers"] += context.caller.headers()
                if runtime.draining.closes:
                    message["headers"].append((b"connection", b"close"))
            elif is_head:
                message = {**message, "body": b""}
            elif message["type"] in STARTS:
                context.status = int(message.get("status", SWITCHED))
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id.encode())]
            await send(message)

        await self._app(scope, receive, send_with_headers)


class RequestLog:
    """Counts each request, and logs it with its path, its images if its body was read, and its times."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        context: RequestContext = scope["state"][CONTEXT]
        try:
            await self._app(scope, receive, send)
        finally:
            route, status, stats = context.route, context.status, context.stats
            path = _NO_ROUTE if route is None else route.path
            metrics.series(metrics.REQUESTS, path, str(status), context.log_fields.get("code", "")).inc()
            polled = route is not None and route.traits.polled
            if not polled or log.is_enabled_for(logging.DEBUG):
                times = stats.seconds(context.started)
                if route is not None and route.traits.takes_images:
                    for stage, seconds in times.items():
                        metrics.series(metrics.STAGE_SECONDS, stage).observe(seconds)
                path = scope["path"]
                # A control character would be escaped with six characters.
                path = path if path.isprintable() else scope.get("raw_path", b"").decode("latin-1")
                fields = {"method": scope.get("method", WEBSOCKET), "path": path, **context.log_fields}
                for name in _OF_CLIENTS & fields.keys():
                    fields[name] = str(fields[name])[:MAX_LOGGED_CHARACTERS]
                if stats.received_bytes or stats.errors:
                    fields["images_ok"] = stats.images_ok
                    fields["images_failed"] = stats.images_failed if stats.errors else 0
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


class Errors:
    """Answers a GatewayError with its status, and any other exception, which is logged, with 500.

    Releases the request's leases of pools when it ends.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        context: RequestContext = scope["state"][CONTEXT]
        try:
            await self._app(scope, receive, send)
        except (ClientDisconnect, WebSocketDisconnect):
            context.note_disconnect()
        except Exception as exc:
            await report(exc, scope, started=context.status != CLIENT_GONE)(scope, receive, send)
        finally:
            for lease in context.leases:
                lease.release()


LOCAL_NAMES = ("*.localhost", "*.local", "*.internal")
"""Names that no public domain has."""
READS = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing; a browser lets no page of another origin read the response."""
OWN_PAGE = frozenset({b"same-origin", b"none"})
"""Values of Sec-Fetch-Site for a page of this service, and for the user's own actions in the browser."""
KNOWN_HOSTS, MAX_HOST_BYTES = 256, 260
"""Values of the header Host whose check is kept, and the longest one: a name of 253 characters and a port."""


class OriginCheck:
    """Requires that a request names this service, and is sent by a program or by a page of this service.

    For a browser, a page whose name resolves to this machine for a moment (DNS rebinding) has the service's origin: it
    could read everything. So Host must be absent, an address, a name without a dot or in LOCAL_NAMES, which no page
    from the internet has, the machine's own name, or one of `hosts`.
    """

    def __init__(self, settings: Settings) -> None:
        self._origins = frozenset(settings.cors_origins)
        self._names = (*LOCAL_NAMES, socket.gethostname().lower(), settings.host.lower(), *settings.hosts)
        self._is_own = lru_cache(KNOWN_HOSTS)(self._names_service)

    def check(self, scope: Scope) -> None:
        """Raise Forbidden for a foreign Host and, unless the method only reads, for a page of another origin."""
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"")
        if len(host) > MAX_HOST_BYTES or not self._is_own(host):
            raise Forbidden(
                f"The service does not know the host {shown(host.decode('latin-1'))}: add it to {variable('hosts')}, "
                "or require API keys."
            )
        origin, site = headers.get(b"origin"), headers.get(b"sec-fetch-site")
        if (origin is None and site is None) or scope.get("method") in READS:
            return
        if not ("*" in self._origins or _text(origin) in self._origins or _is_own_page(origin, site, host)):
            raise Forbidden(
                "Pages of this origin may not send requests to the service; "
                f"{variable('cors_origins')} lists the origins that may."
            )

    def _names_service(self, value: bytes) -> bool:
        host = _text(value)
        name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0].removesuffix(".")
        return "." not in name or is_address(name) or any(fnmatchcase(name, known) for known in self._names)


def _is_own_page(origin: bytes | None, site: bytes | None, host: bytes) -> bool:
    """Whether a browser says that the page has the service's origin; old ones send no Sec-Fetch-Site."""
    if site is not None:
        return site in OWN_PAGE
    return bool(host) and _text(origin).partition("://")[2] == _text(host)  # as text: an origin may be malformed


def _text(value: bytes | None) -> str:
    return (value or b"").decode("latin-1").lower()


class AccessCheck:
    """Finds the route of a request, whose HEAD is served as GET (RFC 9110, 9.3.2); ResponseHeaders omits the body.

    Raises Forbidden for pages of other origins, Unauthorized without a key, NotFound and MethodNotAllowed.
    """

    def __init__(self, app: ASGIApp, routes: RouteTable, keys: KeyCheck, origins: OriginCheck | None) -> None:
        self._app, self._routes, self._keys, self._origins = app, routes, keys, origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        context: RequestContext = scope["state"][CONTEXT]
        if self._origins is not None:
            self._origins.check(scope)
        path, method = scope["path"], scope.get("method", WEBSOCKET)
        served = "GET" if method == "HEAD" else method
        route = self._routes.literal.get(path) or self._routes.match(path, served)
        if route is not None and tracing.current():
            tracing.describe(method, route.path, context.request_id)
        if self._keys.authenticators:
            self._keys.check(scope, context, Access.KEY if route is None else route.traits.access)
        context.route = route
        if route is None:
            raise NotFound(f"There is nothing at {path[:NAME_CHARACTERS]}; see /docs.")
        if route.traits.access is Access.ADMIN and not self._keys.has_admins:
            raise NotFound(
                f"There is nothing at {path[:NAME_CHARACTERS]}: routes for admins, which load models, exist only where "
                "GATEWAY_ADMIN_KEYS_FILE is set."
            )
        if served not in route.methods:
            raise MethodNotAllowed.of(served[:NAME_CHARACTERS], path[:NAME_CHARACTERS], route.methods - {WEBSOCKET})
        if served != method:
            scope = {**scope, "method": served}
        await self._app(scope, receive, send)


class LimitCheck:
    """Enforces the limits of service and caller: raises Overloaded, InvalidParameter, Forbidden, RateLimited.

    While the queue is full, a request with images would be refused anyway, but only after routing and validation, which
    take most of the processor time at five times the capacity. The first image of a request is charged to its caller
    before the body is read.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        context: RequestContext = scope["state"][CONTEXT]
        route, caller = context.route, context.caller
        assert route is not None
        brings_images = route.traits.takes_images and scope.get("method") == "POST"
        if brings_images:
            context.service.admission.check(caller)
        if scope["query_string"].count(b"&") >= MAX_QUERY_PARAMETERS:
            raise InvalidParameter(f"The URL has more than {MAX_QUERY_PARAMETERS} parameters.")
        if caller is not ANYONE:
            caller.check_route(route.path, takes_images=route.traits.takes_images)
            if brings_images:
                context.charged = True
                try:
                    await caller.charge(context.settings.max_wait_seconds, context.stats.stages)
                except RateLimited:
                    await asyncio.sleep(REFUSAL_SECONDS)
                    raise
        await self._app(scope, receive, send)


class DirectRoutes:
    """Calls an endpoint itself if that is all that FastAPI would do."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        route = scope["state"][CONTEXT].route
        if route.traits.direct:
            response = await route.endpoint(Request(scope, receive, send))
            await response(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def middleware(settings: Settings, routes: RouteTable, keys: KeyCheck) -> Sequence[Middleware]:
    """The list, the outermost first.

    CORS is outside of the log, the errors and the keys: pages can read error responses as well, and preflight requests,
    which browsers send without a key, are answered there.
    """
    cors = Middleware(
        CORSMiddleware,
        allow_origins=settings.cors_origins,
        allow_methods=["GET", "POST"],
        allow_headers=["*"],
        expose_headers=["*"],
    )
    return (
        Middleware(ResponseHeaders),
        *([cors] if settings.cors_origins else ()),
        Middleware(RequestLog),
        Middleware(Errors),
        Middleware(AccessCheck, routes, keys, OriginCheck(settings) if keys.admin_only else None),
        Middleware(LimitCheck),
        Middleware(DirectRoutes),
    )


def _cleaned(request_id: bytes) -> str:
    """A client's request id without characters that may be unsafe in a log; it may become empty."""
    return _UNSAFE.sub("", request_id.decode("latin-1"))[:_MAX_REQUEST_ID]


def missing(headers: Headers) -> Headers:
    """The default headers that a response does not set itself."""
    given = dict(headers)
    # A response with an ETag is a static file, which may be cached; all others must not be stored.
    return [each for each in DEFAULT_HEADERS if each[0] not in given and not (each is NO_STORE and b"etag" in given)]
