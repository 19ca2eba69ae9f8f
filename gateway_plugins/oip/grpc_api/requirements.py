"""What the gRPC port needs beyond the packages of the gateway; imports nothing of it."""

from importlib.util import find_spec

from gateway.errors import UserError
from gateway_plugins.shared.extras import install

PACKAGES = ("google.rpc", "grpc_health", "grpc_reflection", "h2")


class GrpcUnavailable(UserError):
    """A port for gRPC is set, but a package that it needs is not installed."""


def require_packages() -> None:
    """Raise GrpcUnavailable unless gateway_plugins.oip.grpc_api.server can be imported."""
    missing = [package for package in PACKAGES if not _is_installed(package)]
    if missing:
        raise GrpcUnavailable(
            f"GATEWAY_GRPC_PORT is set, but the package {missing[0]} is not installed: "
            f"{install('grpc')}, or unset the variable"
        )


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # the package that contains it
        return False
