"""Spans of requests, exported over OTLP/HTTP."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from importlib.util import find_spec
from typing import TYPE_CHECKING

from gateway.errors import UserError
from gateway.hooks import Plugin, Runtime, Spans
from gateway.settings import Settings
from gateway_plugins.otlp.settings import OtlpSettings
from gateway_plugins.shared.extras import install

if TYPE_CHECKING:
    from gateway_plugins.otlp.exporter import Exporter


class TracingUnavailable(UserError):
    """An endpoint for spans is set, but OpenTelemetry's SDK is not installed."""


class Otlp(Plugin):
    """Does nothing unless an endpoint is set."""

    settings = OtlpSettings

    def __init__(self, settings: Settings) -> None:
        endpoint = OtlpSettings.of(settings).otlp_endpoint
        self._exporter = None if endpoint is None else _exporter(endpoint)

    @classmethod
    def check(cls, settings: Settings) -> None:
        """Raise TracingUnavailable if an endpoint is set and the SDK is not installed."""
        if OtlpSettings.of(settings).otlp_endpoint is not None:
            require_sdk()

    def spans(self) -> Spans | None:
        """See Plugin.spans."""
        if self._exporter is None:
            return None
        from gateway_plugins.otlp.spans import TracerSpans

        return TracerSpans(self._exporter.tracer)

    def lifespan(self, runtime: Runtime) -> AbstractAsyncContextManager[None]:
        """Sends the remaining spans at the end."""
        del runtime
        return nullcontext() if self._exporter is None else _closing(self._exporter)


def _exporter(endpoint: str) -> "Exporter":
    from gateway_plugins.otlp.exporter import Exporter  # an optional dependency

    return Exporter(endpoint)


@asynccontextmanager
async def _closing(exporter: "Exporter") -> AsyncIterator[None]:
    try:
        yield
    finally:
        exporter.close()


def require_sdk() -> None:
    """Raise TracingUnavailable unless the exporter can be imported."""
    try:
        found = find_spec("opentelemetry.exporter.otlp.proto.http") and find_spec("opentelemetry.sdk")
    except (ModuleNotFoundError, ValueError):
        found = None
    if found is None:
        raise TracingUnavailable(
            f"GATEWAY_OTLP_ENDPOINT is set, but OpenTelemetry's SDK is not installed: {install('otel')}, "
            "or unset the variable"
        )
