"""The trace of a request (W3C Trace Context, level 2), received from its client and propagated to Triton.

Uses OpenTelemetry's API. Spans are made by a plug-in, see gateway.hooks.Plugin.spans; without one the client's own
context is propagated unchanged. Nothing is registered globally: what makes spans is in the context of each request.
"""

import contextvars
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, cast

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import SpanContext, TraceFlags
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

Headers = dict[str, str]
Attribute = str | int | float | bool

NO_TRACE = Context()
_W3C = TraceContextTextMapPropagator()
_SPANS = contexts.create_key("gateway-spans")
_KNOWN_FLAGS = 0x03
"""sampled and random-trace-id: an implementation propagates only the flags of its version of the protocol."""
MAX_STATE_BYTES = 512
"""Longest tracestate that is propagated: the specification requires 512 bytes, and more would burden every call."""
current = contexts.get_current
"""The context of the current request; it is false if the request has neither a trace nor spans."""


class CallSpans(Protocol):
    """Makes the spans of calls within a request."""

    def call(self, name: str, attributes: Mapping[str, Attribute]) -> AbstractContextManager[Headers]:
        """The span of a call, which records exceptions; yields the headers to send with it."""
        ...

    def link(self, places: Sequence[SpanContext]) -> None:
        """Link the calls of the current context to spans of other requests."""
        ...


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
    if context or current():
        contexts.attach(context)


def with_spans(spans: CallSpans, context: Context) -> Context:
    """The context of a request whose calls get spans, made by `spans`."""
    return contexts.set_value(_SPANS, spans, context)


def link(requests: Iterable[contextvars.Context]) -> None:
    """Link the calls of the current context to other requests that share them, by the contexts of these requests."""
    spans = _spans(current())
    if spans is not None:
        places = [request.run(place) for request in requests]
        spans.link([each for each in places if each.is_valid])


def call(name: str, attributes: Mapping[str, Attribute]) -> AbstractContextManager[Headers | None]:
    """Trace a call to another server for the duration of the block; yields the headers to send with it.

    If spans are exported, the call gets a span of its own, which records exceptions.
    """
    context = current()
    spans = _spans(context)
    return nullcontext(headers_of(context) or None) if spans is None else spans.call(name, attributes)


def _spans(context: Context) -> "CallSpans | None":
    return cast("CallSpans | None", context.get(_SPANS))
