"""Spans of HTTP requests and of their calls, following OpenTelemetry's semantic conventions for HTTP servers.

Starlette's OpenTelemetry middleware is not used: it knows no route of endpoints that are called without Starlette's
routing, such as /predict's, begins spans for probes, too, and reports the status as `error.type` instead of the code.
"""

import time
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanContext, SpanKind, Status, StatusCode, Tracer

from gateway.errors import GatewayError
from gateway.inference.request_stats import RequestStats
from gateway.tracing import Attribute, Headers, headers_of

# Each call to Triton has a span of its own, so its stage needs none.
_STAGES = ("read", "prepare", "wait")
_LINKS = contexts.create_key("gateway-links")


class TracerSpans:
    """The spans that a tracer makes; see gateway.hooks.Spans."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def begin(self, scope: MutableMapping[str, Any], parent: Context, request_id: str) -> "tuple[HttpSpan, Context]":
        """See Spans: the span has the attributes known before routing."""
        headers = dict(scope["headers"])
        attributes: dict[str, Attribute] = {
            "http.request.method": scope["method"],
            "url.scheme": scope["scheme"],
            "url.path": scope["path"],
            "network.protocol.version": scope["http_version"],
            "gateway.request_id": request_id,
        }
        if scope["query_string"]:
            attributes["url.query"] = scope["query_string"].decode("latin-1")
        if scope.get("client"):
            attributes["client.address"] = scope["client"][0]
        if scope.get("server"):
            address, port = scope["server"]
            attributes["server.address"] = address
            if port is not None:  # None for a Unix socket, whose address is its path
                attributes["server.port"] = port
        if b"user-agent" in headers:
            attributes["user_agent.original"] = headers[b"user-agent"].decode("latin-1")
        span = self._tracer.start_span(scope["method"], parent, SpanKind.SERVER, attributes)
        return HttpSpan(self._tracer, span, scope["method"]), trace.set_span_in_context(span, parent)

    @contextmanager
    def call(self, name: str, attributes: Mapping[str, Attribute]) -> Iterator[Headers]:
        """See gateway.tracing.CallSpans."""
        links = cast("list[trace.Link] | None", contexts.get_value(_LINKS))
        span = self._tracer.start_span(name, None, SpanKind.CLIENT, attributes, links)
        try:
            yield headers_of(trace.set_span_in_context(span))
        except GatewayError as error:
            _fail(span, error.code, str(error.__cause__ or error))
            raise
        except BaseException as error:
            _fail(span, type(error).__name__, str(error))
            raise
        finally:
            span.end()

    def link(self, places: Sequence[SpanContext]) -> None:
        """See gateway.tracing.CallSpans."""
        contexts.attach(contexts.set_value(_LINKS, [trace.Link(each) for each in places]))


class HttpSpan:
    """The span of one request; see gateway.hooks.RequestSpan."""

    def __init__(self, tracer: Tracer, span: Span, method: str) -> None:
        self._tracer = tracer
        self._span = span
        self._method = method

    def finish(self, route: str | None, status: int, log_fields: Mapping[str, Any], stats: RequestStats) -> None:
        """See RequestSpan. Client errors do not fail the span."""
        span = self._span
        attributes: dict[str, Attribute] = {"http.request.body.size": stats.received_bytes}
        if log_fields.get("client_gone"):
            attributes["gateway.client_gone"] = True
        else:
            attributes["http.response.status_code"] = status
        if route is not None:
            attributes["http.route"] = route
        if "model" in log_fields:
            attributes["gateway.model.name"] = log_fields["model"]
            attributes["gateway.images.ok"], attributes["gateway.images.failed"] = stats.images_ok, stats.images_failed
        if stats.model_version:
            attributes["gateway.model.version"] = stats.model_version
        for name in _STAGES:
            if stage := stats.stages.get(name):
                self.stage(name, stage.began, stage.ended, stage.seconds)
        span.update_name(f"{self._method} {route}" if route else self._method)
        span.set_attributes(attributes)
        if status >= 500:
            _fail(span, log_fields.get("code", str(status)))
        span.end()

    def stage(self, name: str, began: float, ended: float, seconds: float) -> None:
        """Record a child span for a stage: begin and end by time.perf_counter, `seconds` of actual work."""
        if self._span.is_recording():
            epoch = time.time_ns() - int(time.perf_counter() * 1e9)
            attributes = {"gateway.stage.seconds": seconds}
            span = self._tracer.start_span(name, attributes=attributes, start_time=epoch + int(began * 1e9))
            span.end(epoch + int(ended * 1e9))


def _fail(span: Span, kind: str, description: str | None = None) -> None:
    span.set_attribute("error.type", kind)
    span.set_status(Status(StatusCode.ERROR, description))
