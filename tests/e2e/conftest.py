"""Gateways in front of Tritons that the whole suite shares."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import httpx
import pytest

from gateway_local.server import EmbeddedTriton
from tests.processes import Gateway, running_gateway

StartGateway = Callable[..., AbstractContextManager[Gateway]]


@pytest.fixture(scope="session")
def start_gateway(tmp_path_factory: pytest.TempPathFactory) -> StartGateway:
    """Starts a gateway with the settings of a test."""
    folder, number = tmp_path_factory.mktemp("gateways"), itertools.count()
    return lambda **settings: running_gateway(folder / f"{next(number)}.log", **settings)


@pytest.fixture(scope="session")
def gateway(start_gateway: StartGateway, light_triton: EmbeddedTriton) -> Iterator[Gateway]:
    """A gateway with default settings. Its Triton classifies every image as a cat, without a network."""
    with start_gateway(triton_url=light_triton.url) as running:
        yield running


@pytest.fixture(scope="session")
def client(gateway: Gateway) -> Iterator[httpx.Client]:
    """An HTTP client of `gateway`."""
    with gateway.client() as http:
        yield http


@pytest.fixture(scope="session")
def real_gateway(start_gateway: StartGateway, triton: EmbeddedTriton) -> Iterator[Gateway]:
    """A gateway with default settings in front of the default model, with its network."""
    with start_gateway(triton_url=triton.url) as running:
        yield running


@pytest.fixture(scope="session")
def decoding_gateway(start_gateway: StartGateway, triton: EmbeddedTriton) -> Iterator[Gateway]:
    """As `real_gateway`, and it decodes every image itself."""
    with start_gateway(triton_url=triton.url, decode="always") as running:
        yield running


@pytest.fixture(scope="session")
def real_client(real_gateway: Gateway) -> Iterator[httpx.Client]:
    """An HTTP client of `real_gateway`."""
    with real_gateway.client() as http:
        yield http
