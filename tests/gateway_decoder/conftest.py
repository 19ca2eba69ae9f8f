"""Fixtures of the tests of decoders."""

from collections.abc import AsyncIterator

import pytest

from gateway.ingest.decoders.pool import Decoders
from tests.gateway_decoder.pools import decoders


@pytest.fixture(scope="module")
async def pool() -> AsyncIterator[Decoders]:
    """One process for all tests of a module, since processes start slowly."""
    async with decoders() as pool:
        yield pool
