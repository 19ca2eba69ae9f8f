"""Gateways in front of Triton servers that the whole suite shares."""

from collections.abc import Iterator

import httpx
import pytest

from gateway_local.server import EmbeddedTriton
from tests.processes import Gateway


@pytest.fixture(scope="session")
def gateway(start_gateway, light_triton: EmbeddedTriton) -> Iterator[Gateway]:
    """A gateway with default settings. Its Triton classifies every image as a cat, without a network."""
    with start_gateway(triton_url=light_triton.url) as running:
        yield running


@pytest.fixture(scope="session")
def client(gateway: Gateway) -> Iterator[httpx.Client]:
    with gateway.client() as http:
        yield http


@pytest.fixture(scope="session")
def real_gateway(start_gateway, triton: EmbeddedTriton) -> Iterator[Gateway]:
    """A gateway with default settings in front of the default model, with its network."""
    with start_gateway(triton_url=triton.url) as running:
        yield running


@pytest.fixture(scope="session")
def decoding_gateway(start_gateway, triton: EmbeddedTriton) -> Iterator[Gateway]:
    """As `real_gateway`, and it decodes every image itself."""
    with start_gateway(triton_url=triton.url, decode="always") as running:
        yield running


@pytest.fixture(scope="session")
def real_client(real_gateway: Gateway) -> Iterator[httpx.Client]:
    with real_gateway.client() as http:
        yield http
