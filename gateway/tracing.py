"""The trace of a request (W3C Trace Context, level 2), received from its client and propagated to Triton.

Uses OpenTelemetry's API. Spans also need its SDK, see gateway_plugins.otlp; without it the client's own context is
propagated unchanged. Nothing is registered globally: the tracer is stored in the context of each request.
"""

import contextvars
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import cast

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from gateway.errors import GatewayError

Headers = dict[str, str]
Attribute = str | int | float | bool

NO_TRACE = Context()
_W3C = TraceContextTextMapPropagator()
_TRACER = contexts.create_key("gateway-tracer")
_LINKS = contexts.create_key("gateway-links")
_KNOWN_FLAGS = 0x03
"""sampled and random-trace-id: an implementation propagates only the flags of its version of the protocol."""
MAX_STATE_BYTES = 512
"""Longest tracestate that is propagated: the specification requires 512 bytes, and more would burden every call."""
_UNTRACED: AbstractContextManager[Headers | None] = nullcontext(None)


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
    context = _W3C.extract({"traceparent": parents, "tracestate": states}, NO_TRACE)
    parent = place(context)
    if parent.trace_flags & ~_KNOWN_FLAGS:
        flags = TraceFlags(parent.trace_flags & _KNOWN_FLAGS)
        known = SpanContext(parent.trace_id, parent.span_id, parent.is_remote, flags, parent.trace_state)
        return trace.set_span_in_context(trace.NonRecordingSpan(known), NO_TRACE)
    return context


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


def join(context: Context) -> None:
    """Make a context the current one of the request that is being served."""
    if context or contexts.get_current():
        contexts.attach(context)


def begin(tracer: trace.Tracer, name: str, parent: Context, attributes: Mapping[str, Attribute]) -> trace.Span:
    """Begin the span of a new request, as part of its client's trace; the caller must call `end`."""
    span = tracer.start_span(name, parent, SpanKind.SERVER, attributes)
    join(contexts.set_value(_TRACER, tracer, trace.set_span_in_context(span, parent)))
    return span


def link(requests: Iterable[contextvars.Context]) -> None:
    """Link the calls of the current context to other requests that share them, by the contexts of these requests."""
    if isinstance(contexts.get_value(_TRACER), trace.Tracer):
        places = [request.run(place) for request in requests]
        contexts.attach(contexts.set_value(_LINKS, [trace.Link(each) for each in places if each.is_valid]))


def call(name: str, attributes: Mapping[str, Attribute]) -> AbstractContextManager[Headers | None]:
    """Trace a call to another server for the duration of the block; yields the headers to send with it.

    If spans are exported, the call gets a span of its own, which records exceptions.
    """
    context = contexts.get_current()
    if not context:
        return _UNTRACED
    tracer = context.get(_TRACER)
    if isinstance(tracer, trace.Tracer):
        return _recorded(tracer, name, attributes)
    return nullcontext(headers_of(context) or None)


@contextmanager
def _recorded(tracer: trace.Tracer, name: str, attributes: Mapping[str, Attribute]) -> Iterator[Headers]:
    links = cast("list[trace.Link] | None", contexts.get_value(_LINKS))
    span = tracer.start_span(name, None, SpanKind.CLIENT, attributes, links)
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


def stage(name: str, began: float, ended: float, seconds: float) -> None:
    """Record a child span of the request for a stage: begin and end by time.perf_counter, `seconds` of actual work."""
    tracer = contexts.get_value(_TRACER)
    if isinstance(tracer, trace.Tracer) and trace.get_current_span().is_recording():
        epoch = time.time_ns() - int(time.perf_counter() * 1e9)
        attributes = {"gateway.stage.seconds": seconds}
        span = tracer.start_span(name, attributes=attributes, start_time=epoch + int(began * 1e9))
        span.end(epoch + int(ended * 1e9))


def end(span: trace.Span, name: str, attributes: Mapping[str, Attribute], error: str | None) -> None:
    """End a request's span under its final name; `error` is the error code if the service failed."""
    span.update_name(name)
    span.set_attributes(attributes)
    if error is not None:
        _fail(span, error)
    span.end()


def _fail(span: trace.Span, kind: str, description: str | None = None) -> None:
    span.set_attribute("error.type", kind)
    span.set_status(Status(StatusCode.ERROR, description))
