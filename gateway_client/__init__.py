"""The Python client of the gateway: sends any number of images and yields one result for each as it is ready.

It is a separate distribution that needs only httpx and imports nothing of the gateway. `gateway classify` uses it.
"""

from gateway_client.asynchronous import AsyncGateway
from gateway_client.blocking import Gateway
from gateway_client.errors import GatewayError, ImageError, RequestError, ServiceError
from gateway_client.images import ImageUrl, NamedImage
from gateway_client.results import Frame, Model, Prediction, Result

__all__ = [
    "AsyncGateway",
    "Frame",
    "Gateway",
    "GatewayError",
    "ImageError",
    "ImageUrl",
    "Model",
    "NamedImage",
    "Prediction",
    "RequestError",
    "Result",
    "ServiceError",
    "__version__",
]

__version__ = "0.1.0"
