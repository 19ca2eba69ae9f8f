"""The Open Inference Protocol, version 2: /v2 over HTTP, and gRPC on a separate port."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING

from gateway.hooks import ErrorFormat, Plugin, Port, Runtime
from gateway.plugins.oip import settings as oip_settings
from gateway.plugins.oip.settings import ProtocolSettings
from gateway.settings import Settings, variable
from gateway.values.extras import require

if TYPE_CHECKING:
    from fastapi import APIRouter

PACKAGES = ("google.rpc", "grpc_health", "grpc_reflection")
"""Packages for the gRPC port in addition to the gateway's."""


class OpenInferenceProtocol(Plugin):
    """The Open Inference Protocol."""

    settings = ProtocolSettings

    def __init__(self, settings: Settings) -> None:
        self._settings = ProtocolSettings.of(settings)

    @classmethod
    def check(cls, settings: Settings) -> None:
        """Raise ExtraMissing if a port for gRPC is set but its packages are not installed."""
        if ProtocolSettings.of(settings).grpc_port:
            require(variable("grpc_port"), "grpc", *PACKAGES)

    @classmethod
    def ports(cls, settings: Settings) -> Sequence[Port]:
        """The port for gRPC, if one is set."""
        number = ProtocolSettings.of(settings).grpc_port
        return (Port("grpc_port", number, "gRPC, the Open Inference Protocol"),) if number else ()

    def routers(self) -> "Sequence[APIRouter]":
        """The paths below /v2."""
        from gateway.plugins.oip.routes import infer, models
        from gateway.plugins.oip.sequences import OpenSequences

        return models.router, infer.infer_routes(OpenSequences(oip_settings.MAX_SEQUENCES))

    def error_formats(self) -> Sequence[ErrorFormat]:
        """An object with one message."""
        from gateway.plugins.oip.documents import V2_ERRORS

        return (V2_ERRORS,)

    def lifespan(self, runtime: Runtime) -> AbstractAsyncContextManager[None]:
        """The gRPC server, if a port is set."""
        if not self._settings.grpc_port:
            return nullcontext()
        from gateway.plugins.oip.grpc_api.server import serving

        return serving(runtime)
