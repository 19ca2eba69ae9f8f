"""Spans of requests and of their calls to Triton, exported over OTLP/HTTP.

OpenTelemetry's own variables configure it; it is off unless one of ENDPOINTS is set.
"""

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from gateway.hooks import Plugin, Runtime
from gateway.settings import Settings
from gateway.values.extras import require

if TYPE_CHECKING:
    from starlette.middleware import Middleware

    from gateway.plugins.otlp.exporter import Exporter

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
PACKAGES = (
    "opentelemetry.sdk.trace",
    "opentelemetry.exporter.otlp.proto.http",
    "opentelemetry.instrumentation.asgi",
    "opentelemetry.instrumentation.grpc",
)


class Otlp(Plugin):
    """Does nothing unless an endpoint is set."""

    def __init__(self, settings: Settings) -> None:
        del settings
        self._exporter = _exporter()

    def middleware(self) -> "Sequence[Middleware]":
        """The span of each POST request."""
        return () if self._exporter is None else (self._exporter.middleware(),)

    @asynccontextmanager
    async def lifespan(self, runtime: Runtime) -> AsyncIterator[None]:
        """Sends the remaining spans at the end."""
        del runtime
        try:
            yield
        finally:
            if self._exporter is not None:
                self._exporter.close()


def _exporter() -> "Exporter | None":
    endpoint = next((name for name in ENDPOINTS if os.environ.get(name)), None)
    if endpoint is None:
        return None
    require(endpoint, "otel", *PACKAGES)
    from gateway.plugins.otlp.exporter import Exporter

    return Exporter()
