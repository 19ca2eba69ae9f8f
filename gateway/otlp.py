"""Spans by OpenTelemetry's SDK, sent over OTLP/HTTP; imported only where an endpoint is set, as it is an extra.

The SDK's own variables hold beside the endpoint: OTEL_TRACES_SAMPLER, OTEL_EXPORTER_OTLP_HEADERS, OTEL_BSP_*,
OTEL_RESOURCE_ATTRIBUTES, OTEL_SERVICE_NAME. Nothing is registered globally.
"""

import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from gateway import __version__
from gateway.errors import GatewayError
from gateway.tracing import Attribute, Headers, Span, TraceContext

DEFAULT_SERVICE_NAME = "triton-image-gateway"
TRACES_PATH = "/v1/traces"
FLUSH_SECONDS = 5.0
"""How long a stop may wait for a collector that is slow or away."""


class OtlpTracer:
    """Makes the spans of requests and sends them, in batches and on a thread of its own, to an OTLP/HTTP endpoint."""

    def __init__(self, endpoint: str) -> None:
        url = endpoint.rstrip("/").removesuffix(TRACES_PATH) + TRACES_PATH
        self._provider = TracerProvider(
            resource=Resource.create(
                {
                    SERVICE_NAME: os.environ.get("OTEL_SERVICE_NAME") or DEFAULT_SERVICE_NAME,
                    SERVICE_VERSION: __version__,
                }
            ),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(url)))
        self._tracer = self._provider.get_tracer("gateway", __version__)

    def server(self, name: str, parent: TraceContext | None, attributes: Mapping[str, Attribute]) -> "OtlpSpan":
        """Begin the span of a request that has just come in; `end` it."""
        context = _remote(parent) if parent else Context()
        span = self._tracer.start_span(name, context, SpanKind.SERVER, attributes)
        return OtlpSpan(self._tracer, span)

    def close(self) -> None:
        """Send what is left, for FLUSH_SECONDS at most."""
        # On a daemon thread: the SDK's own patience is much longer, and nothing would end it.
        flushing = threading.Thread(target=self._provider.shutdown, name="otlp-flush", daemon=True)
        flushing.start()
        flushing.join(FLUSH_SECONDS)


class OtlpSpan(Span):
    """The span of one request."""

    __slots__ = ("_began", "_began_nanoseconds", "_inside", "_span", "_tracer")

    def __init__(self, tracer: trace.Tracer, span: trace.Span) -> None:
        super().__init__(_context(span))
        self._tracer = tracer
        self._span = span
        self._inside = trace.set_span_in_context(span, Context())
        self._began, self._began_nanoseconds = time.perf_counter(), time.time_ns()

    @contextmanager
    def call(self, name: str, attributes: Mapping[str, Attribute]) -> Iterator[Headers]:
        """A client span around the block; what is raised in it is noted."""
        span = self._tracer.start_span(name, self._inside, SpanKind.CLIENT, attributes)
        try:
            yield _context(span).headers()
        except GatewayError as error:
            _fail(span, error.code, str(error.__cause__ or error))
            raise
        except BaseException as error:
            _fail(span, type(error).__name__, str(error))
            raise
        finally:
            span.end()

    def stage(self, name: str, began: float, ended: float, seconds: float) -> None:
        """A child span for a stage between two moments of time.perf_counter, with the seconds that it was at work."""
        if self._span.is_recording():
            span = self._tracer.start_span(
                name, self._inside, attributes={"gateway.stage.seconds": seconds}, start_time=self._nanoseconds(began)
            )
            span.end(self._nanoseconds(ended))

    def end(self, name: str, attributes: Mapping[str, Attribute], error: str | None) -> None:
        """End the span under its final name; `error` is the code of a fault of the service, if there was one."""
        self._span.update_name(name)
        self._span.set_attributes(attributes)
        if error is not None:
            _fail(self._span, error)
        self._span.end()

    def _nanoseconds(self, moment: float) -> int:
        return self._began_nanoseconds + int((moment - self._began) * 1e9)


def _fail(span: trace.Span, kind: str, description: str | None = None) -> None:
    span.set_attribute("error.type", kind)
    span.set_status(Status(StatusCode.ERROR, description))


def _context(span: trace.Span) -> TraceContext:
    context = span.get_span_context()
    return TraceContext(
        trace.format_trace_id(context.trace_id),
        trace.format_span_id(context.span_id),
        int(context.trace_flags),
        context.trace_state.to_header(),
    )


def _remote(parent: TraceContext) -> Context:
    context = SpanContext(
        int(parent.trace_id, 16),
        int(parent.span_id, 16),
        is_remote=True,
        trace_flags=TraceFlags(parent.flags),
        trace_state=TraceState.from_header([parent.state]),
    )
    return trace.set_span_in_context(NonRecordingSpan(context), Context())
