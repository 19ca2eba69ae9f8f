"""Which kind of channel leads to a Triton: with or without TLS, by the settings."""

from functools import partial
from typing import Protocol

from gateway.settings import Settings
from gateway.triton.grpc_endpoint import GrpcEndpoint
from gateway.triton.tls import read_tls


class Connect(Protocol):
    """Makes the endpoint of an address."""

    def __call__(self, address: str) -> GrpcEndpoint:
        """The endpoint of host:port."""
        ...


def connector(settings: Settings) -> Connect:
    """Makes endpoints for the settings: with TLS if a CA is set; raises TlsError.

    The files are read once, as Triton reads its own: after they were renewed, both have to be restarted.
    """
    if settings.triton_ca_file is None:
        return GrpcEndpoint
    return partial(GrpcEndpoint, tls=read_tls(settings, settings.triton_ca_file))
