"""The trace of a request (W3C Trace Context, level 2), received from its client and propagated to Triton.

Uses OpenTelemetry's API. Spans are made by OpenTelemetry's instrumentation, which the plug-in otlp switches on; without
it the client's own context is propagated unchanged.
"""

from collections.abc import Iterable

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import SpanContext
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

Headers = dict[str, str]

NO_TRACE = Context()
_W3C = TraceContextTextMapPropagator()
MAX_STATE_BYTES = 512
"""Longest tracestate that is propagated: the specification requires 512 bytes, and more would burden every call."""
current = contexts.get_current
"""The context of the current request; it is false if the request has neither a trace nor spans."""


def received(headers: Iterable[tuple[bytes, bytes]]) -> Context:
    """The trace in a client's headers (names in lower case); NO_TRACE if it is missing or malformed."""
    parents: list[str] = []
    states: list[str] = []
    for name, value in headers:
        if name == b"traceparent":
            parents.append(value.decode("latin-1").strip())
        elif name == b"tracestate":
            states.append(value.decode("latin-1").strip())
    if len(",".join(filter(None, states))) > MAX_STATE_BYTES:
        states = []
    if len(parents) != 1:
        return NO_TRACE
    return _W3C.extract({"traceparent": parents, "tracestate": states}, NO_TRACE)


def place(context: Context | None = None) -> SpanContext:
    """The span context of a context, by default of the current request; see SpanContext.is_valid."""
    return trace.get_current_span(context).get_span_context()


def trace_id(context: Context | None = None) -> str | None:
    """The trace id of a context in 32 hexadecimal digits, None without a trace."""
    found = place(context)
    return trace.format_trace_id(found.trace_id) if found.is_valid else None


def headers_of(context: Context | None = None) -> Headers:
    """The headers `traceparent` and `tracestate`; empty without a trace."""
    headers: Headers = {}
    _W3C.inject(headers, context)
    return headers


def join(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Make the trace in a client's headers the current one, unless the request has a span of this service."""
    own = place()
    if not own.is_valid or own.is_remote:
        contexts.attach(received(headers))


def describe(method: str, route: str, request_id: str) -> None:
    """Name the span of the current request, if it is recorded, by its route, and add its id."""
    span = trace.get_current_span()
    if span.is_recording():
        span.update_name(f"{method} {route}")
        span.set_attributes({"http.route": route, "gateway.request_id": request_id})
