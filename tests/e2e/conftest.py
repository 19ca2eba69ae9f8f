"""A gateway in front of the suite's real Triton."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import httpx
import pytest

from gateway_local.server import EmbeddedTriton
from tests.processes import Gateway, running_gateway

StartGateway = Callable[..., AbstractContextManager[Gateway]]


@pytest.fixture(scope="session")
def start_gateway(triton: EmbeddedTriton, tmp_path_factory: pytest.TempPathFactory) -> StartGateway:
    """Starts a gateway of a test's own, with settings of its own."""
    folder, number = tmp_path_factory.mktemp("gateways"), itertools.count()

    def start(**settings: object) -> AbstractContextManager[Gateway]:
        settings = {"triton_url": triton.url, **settings}
        return running_gateway(folder / f"{next(number)}.log", **settings)

    return start


@pytest.fixture(scope="session")
def gateway(start_gateway: StartGateway) -> Iterator[Gateway]:
    """A ready gateway with default settings."""
    with start_gateway() as running:
        yield running


@pytest.fixture(scope="session")
def decoding_gateway(start_gateway: StartGateway) -> Iterator[Gateway]:
    """A ready gateway that decodes every image itself."""
    with start_gateway(decode="always") as running:
        yield running


@pytest.fixture(scope="session")
def client(gateway: Gateway) -> Iterator[httpx.Client]:
    """An HTTP client of `gateway`."""
    with gateway.client() as http:
        yield http
