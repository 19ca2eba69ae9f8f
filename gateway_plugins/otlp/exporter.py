"""Exports spans over OTLP/HTTP; imported only if an endpoint is set, because OpenTelemetry's SDK is an extra.

The SDK's own environment variables also apply: OTEL_TRACES_SAMPLER, OTEL_EXPORTER_OTLP_HEADERS, OTEL_BSP_*,
OTEL_RESOURCE_ATTRIBUTES, OTEL_SERVICE_NAME. Nothing is registered globally.
"""

import os
import threading

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from gateway import __version__

DEFAULT_SERVICE_NAME = "triton-image-gateway"
TRACES_PATH = "/v1/traces"
FLUSH_SECONDS = 5.0
"""Longest time that a shutdown waits for a slow or unreachable collector."""


class Exporter:
    """Sends the spans of its tracer to an OTLP/HTTP endpoint, in batches on a background thread."""

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
        self.tracer: trace.Tracer = self._provider.get_tracer("gateway", __version__)

    def close(self) -> None:
        """Send the remaining spans, for at most FLUSH_SECONDS."""
        # On a daemon thread: the SDK's own timeout is much longer and cannot be interrupted.
        flushing = threading.Thread(target=self._provider.shutdown, name="otlp-flush", daemon=True)
        flushing.start()
        flushing.join(FLUSH_SECONDS)
