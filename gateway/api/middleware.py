"""Pure ASGI middleware around every request."""

import re
import time
import uuid
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import structlog
from opentelemetry import trace
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect

from gateway import metrics, tracing
from gateway.api import request_context as request_contexts
from gateway.api.problems import note, problem
from gateway.api.request_context import RequestContext
from gateway.api.server_span import begin, finish
from gateway.errors import GatewayError, InternalError, clear_frames
from gateway.inference.request_stats import RequestStats
from gateway.logs import AlreadyLogged
from gateway.streams.messages import error_message

log = structlog.get_logger("gateway")

SWITCHED = HTTPStatus.SWITCHING_PROTOCOLS
INTERNAL_ERROR, ABNORMAL = 1011, 1006
OWN_CODES = 4000
"""First close code for applications (RFC 6455, section 7.4.2); an error's close code is this plus its HTTP status."""
CLIENT_GONE = 499
"""Status in the log if no response was sent, as in nginx."""
QUIET_ROUTES = frozenset(
    {
        "/health/live",
        "/health/ready",
        "/v2/health/live",
        "/v2/health/ready",
        "/metrics",
        "/assets/{path:path}",
        "/docs/assets/{path:path}",
    }
)
"""Requested often: logged at debug level."""

MAX_LOGGED_CHARACTERS = 256
"""Longest text from a client in a log event; with all its fields, an event has at most 2 KiB."""

_OF_CLIENTS = frozenset({"method", "path", "model"})
_UNSAFE = re.compile(r"[^A-Za-z0-9._:/+=@-]")
_MAX_REQUEST_ID = 128
# Unknown paths come from clients and must not become labels.
_NO_ROUTE = "unmatched"


class RequestContextMiddleware:
    """Gives each request an id (the client's `X-Request-ID`, cleaned, or a new one), a log event, metrics and a trace.

    Handlers add fields to the RequestContext. With a tracer, POST requests get a span.
    """

    def __init__(self, app: ASGIApp, tracer: trace.Tracer | None = None) -> None:
        self._app = app
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] == "websocket":
            await self._serve_websocket(scope, receive, send)
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(scope)
        context = request_contexts.begin(scope, request_id)
        event, tally = context.event, context.tally
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=request_id)
        span = self._trace(scope)
        started = time.perf_counter()
        status = CLIENT_GONE

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = int(message["status"])
                message["headers"] += [
                    (b"x-request-id", request_id.encode()),
                    (b"server-timing", server_timing(_times(tally, started)).encode()),
                ]
                if scope["state"].get("draining"):
                    message["headers"].append((b"connection", b"close"))
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        except Exception as exc:
            log.exception("unexpected_error")
            event["code"] = InternalError.code
            if status != CLIENT_GONE:
                # A part of the response is already sent: only closing the connection can signal the error.
                raise AlreadyLogged from exc
            await problem(InternalError(), scope)(scope, receive, send_with_headers)
        finally:
            context.resources.close()
            times = _times(tally, started)
            route = context.route or getattr(scope.get("route"), "path", _NO_ROUTE)
            metrics.REQUESTS.labels(route, str(status), event.get("code", "")).inc()
            if route in metrics.CLASSIFYING_ROUTES:
                for stage, seconds in times.items():
                    metrics.STAGE_SECONDS.labels(stage).observe(seconds)
            if span is not None:
                finish(span, scope, None if route == _NO_ROUTE else route, status, event, tally)
            fields = {"method": scope["method"], "path": _logged_path(scope), **event, **_image_fields(tally)}
            fields.update((f"{stage}_seconds", round(times[stage], 6)) for stage in ("total", *tally.stages))
            _log(status, fields, faulty=tally.fault is not None, quiet=route in QUIET_ROUTES)

    async def _serve_websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a stream of frames; its log event and metrics are written when it ends.

        A GatewayError is reported by its status or close code, any other exception is logged and reported by 500 or
        1011.
        """
        request_id = _request_id(scope)
        context = request_contexts.begin(scope, request_id)
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=request_id)
        self._trace(scope)
        started = time.perf_counter()
        status = CLIENT_GONE

        async def receive_unless_gone() -> Message:
            message = await receive()
            if message["type"] == "websocket.disconnect" and status != SWITCHED:
                raise WebSocketDisconnect(message["code"], message.get("reason"))
            return message

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] in {"websocket.accept", "websocket.http.response.start"}:
                status = int(message.get("status", SWITCHED))
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id.encode())]
            try:
                await send(message)
            except OSError:  # as specified by ASGI: the connection is closed
                raise WebSocketDisconnect(ABNORMAL) from None

        try:
            await self._app(scope, receive_unless_gone, send_with_id)
        except WebSocketDisconnect as gone:  # the client disconnected before the handshake was complete
            clear_frames(gone)
        except GatewayError as error:
            clear_frames(error)
            await _end_websocket(error, context, scope, send_with_id, accepted=status == SWITCHED)
        except Exception:
            log.exception("unexpected_error")
            await _end_websocket(InternalError(), context, scope, send_with_id, accepted=status == SWITCHED)
        finally:
            context.resources.close()
            route = context.route or getattr(scope.get("route"), "path", _NO_ROUTE)
            metrics.REQUESTS.labels(route, str(status), context.event.get("code", "")).inc()
            seconds = round(time.perf_counter() - started, 6)
            fields = {"method": "WEBSOCKET", "path": _logged_path(scope), **context.event, "total_seconds": seconds}
            _log(status, fields, faulty="code" in context.event, quiet=False)

    def _trace(self, scope: Scope) -> trace.Span | None:
        """Continue the client's trace; if spans are exported, begin a new trace without one."""
        parent = tracing.received(scope["headers"])
        span = None
        if self._tracer is not None and scope.get("method") == "POST":  # a WebSocket has none
            span = begin(self._tracer, scope, parent)
        else:
            tracing.join(parent)
        if (trace_id := tracing.trace_id()) is not None:
            structlog.contextvars.bind_contextvars(trace_id=trace_id)
        return span


async def _end_websocket(
    error: GatewayError, context: RequestContext, scope: Scope, send: Send, *, accepted: bool
) -> None:
    """Respond to a handshake with an error, or send an error message on an open stream and close it."""
    note(context.event, error)
    try:
        if not accepted:
            await problem(error, scope)(scope, _receive_nothing, send)
            return
        context.event["close_code"] = code = close_code(error)
        await send({"type": "websocket.send", "text": error_message(error).decode()})
        await send({"type": "websocket.close", "code": code, "reason": error.code})
    except WebSocketDisconnect:
        context.event.pop("close_code", None)  # the connection is closed already


async def _receive_nothing() -> Message:
    """Never called: an error response does not receive messages."""
    raise AssertionError


def close_code(error: GatewayError) -> int:
    """The WebSocket close code of an error: 1011 for an internal error (RFC 6455, section 7.4.1)."""
    return INTERNAL_ERROR if isinstance(error, InternalError) else OWN_CODES + int(error.status)


def server_timing(times: Mapping[str, float]) -> str:
    """Convert seconds by stage to a Server-Timing header (W3C Server Timing), in milliseconds."""
    return ", ".join(f"{stage};dur={seconds * 1e3:.2f}" for stage, seconds in times.items())


def _times(tally: RequestStats, started: float) -> dict[str, float]:
    times = {name: stage.seconds for name, stage in tally.stages.items()}
    times["total"] = time.perf_counter() - started
    return times


def _image_fields(tally: RequestStats) -> dict[str, object]:
    """Log fields about the images of a request whose body was read."""
    if not tally.received_bytes and not tally.errors:
        return {}
    fields: dict[str, object] = {"images_ok": tally.images_ok, "images_failed": tally.images_failed}
    if tally.model_version:
        fields["model_version"] = tally.model_version
    if tally.errors:
        fields["errors"] = dict(tally.errors)
    if tally.fault is not None and tally.fault.__cause__ is not None:
        fields["cause"] = str(tally.fault.__cause__)
    fields["received_bytes"] = tally.received_bytes
    return fields


def _logged_path(scope: Scope) -> str:
    """The path, percent-encoded if it has control characters, which the log would escape with six characters each."""
    path: str = scope["path"]
    return path if path.isprintable() else scope.get("raw_path", b"").decode("latin-1")


def _request_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            given = _UNSAFE.sub("", value.decode("latin-1"))[:_MAX_REQUEST_ID]
            if given:
                return given
    return uuid.uuid4().hex


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
