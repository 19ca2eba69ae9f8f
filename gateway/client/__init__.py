"""The gateway's client: any number of pictures in, one result for each as it is ready.

This package has two homes. It is `gateway_client`, a distribution of its own (clients/python) that needs httpx and
nothing else, and `gateway.client`, which `gateway classify` runs on. So it imports itself relatively, and nothing of
the gateway.
"""

from .asynchronous import AsyncGateway
from .blocking import Gateway
from .errors import BY_CODE, GatewayError, ImageError, RequestError, ServiceError
from .faults import ConnectionLost, UnexpectedAnswer, Unreachable, UnreadableFile
from .pictures import Picture
from .results import Frame, Model, Prediction, Progress, Result

__all__ = [
    "BY_CODE",
    "AsyncGateway",
    "ConnectionLost",
    "Frame",
    "Gateway",
    "GatewayError",
    "ImageError",
    "Model",
    "Picture",
    "Prediction",
    "Progress",
    "RequestError",
    "Result",
    "ServiceError",
    "UnexpectedAnswer",
    "Unreachable",
    "UnreadableFile",
    "__version__",
]

__version__ = "0.1.0"
