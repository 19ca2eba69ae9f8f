"""OpenTelemetry's instrumentation of ASGI and gRPC; imported only if an endpoint is set, as it is an extra.

The gRPC instrumentation and the propagator are the only global registrations, until `close`.
"""

import os
import threading

import grpc
from opentelemetry import context, propagate, trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware
from opentelemetry.instrumentation.grpc import GrpcAioInstrumentorClient
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway import __version__

DEFAULT_SERVICE_NAME = "triton-image-gateway"
FLUSH_SECONDS = 5.0
"""Longest time that a shutdown waits for a slow or unreachable collector."""


class Exporter:
    """Sends the spans of requests and of their calls to Triton to a collector, in batches on a background thread."""

    def __init__(self) -> None:
        os.environ.setdefault("OTEL_SEMCONV_STABILITY_OPT_IN", "http")  # the stable names of attributes
        name = os.environ.get("OTEL_SERVICE_NAME") or DEFAULT_SERVICE_NAME
        resource = Resource.create({SERVICE_NAME: name, SERVICE_VERSION: __version__})
        self.provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self.provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        propagate.set_global_textmap(TraceContextTextMapPropagator())  # clients send Triton no baggage
        self._grpc = GrpcAioInstrumentorClient(filter_=_is_of_a_request)  # type: ignore[no-untyped-call]
        self._grpc.instrument(tracer_provider=self.provider)

    def middleware(self) -> Middleware:
        """Gives each POST request a span."""
        return Middleware(RequestSpans, self.provider)

    def close(self) -> None:
        """Send the remaining spans, for at most FLUSH_SECONDS."""
        self._grpc.uninstrument()
        # On a daemon thread: the SDK's own timeout is much longer and cannot be interrupted.
        flushing = threading.Thread(target=self.provider.shutdown, name="otlp-flush", daemon=True)
        flushing.start()
        flushing.join(FLUSH_SECONDS)


class RequestSpans:
    """ASGI middleware that gives each POST request a span, and its messages none."""

    def __init__(self, app: ASGIApp, provider: TracerProvider) -> None:
        self._app = app
        self._traced = OpenTelemetryMiddleware(
            app, tracer_provider=provider, meter_provider=NoOpMeterProvider(), exclude_spans=["receive", "send"]
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        # A pipelined request starts in the context of the previous request.
        context.attach(context.Context())
        await (self._traced if scope.get("method") == "POST" else self._app)(scope, receive, send)


def _is_of_a_request(call: grpc.ClientCallDetails) -> bool:  # noqa: ARG001  # see GrpcAioInstrumentorClient
    """Whether a call is part of a request that has a span: health probes have none."""
    return trace.get_current_span().get_span_context().is_valid
