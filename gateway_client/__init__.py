"""The Python client of the gateway: sends any number of images and yields one result for each as it is ready.

It is a separate distribution that needs only httpx and imports nothing of the gateway. `gateway classify` uses it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway_client.asynchronous import AsyncGateway
    from gateway_client.blocking import Gateway
    from gateway_client.errors import GatewayError, ImageError, RequestError, ServiceError
    from gateway_client.images import NamedImage
    from gateway_client.results import Model, Prediction, Result

__all__ = [
    "AsyncGateway",
    "Gateway",
    "GatewayError",
    "ImageError",
    "Model",
    "NamedImage",
    "Prediction",
    "RequestError",
    "Result",
    "ServiceError",
    "__version__",
]

__version__ = "0.1.0"

_MODULES = {
    "asynchronous": ["AsyncGateway"],
    "blocking": ["Gateway"],
    "errors": ["GatewayError", "ImageError", "RequestError", "ServiceError"],
    "images": ["NamedImage"],
    "results": ["Model", "Prediction", "Result"],
}


def __getattr__(name: str) -> object:
    """Import a name when it is first used: a command that sends nothing does not import httpx."""
    for module, names in _MODULES.items():
        if name in names:
            globals().update({each: getattr(import_module(f"gateway_client.{module}"), each) for each in names})
            return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
