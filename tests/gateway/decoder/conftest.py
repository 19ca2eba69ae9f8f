"""Fixtures of the tests of decoders."""

from collections.abc import AsyncIterator

import pytest

from gateway.ingest.decoder_pool import DecoderPool
from tests.gateway.decoder.pools import decoders


@pytest.fixture(scope="module")
async def pool() -> AsyncIterator[DecoderPool]:
    """One process for all tests of a module, since processes start slowly; another that a test starts ends soon."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gateway.ingest.decoder_pool.SPARE_SECONDS", 0.01)
        async with decoders() as pool:
            yield pool
