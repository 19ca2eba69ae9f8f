"""Streams of clients: an end that only a race shows. The tests of streams cover the rest."""

import asyncio
from unittest.mock import AsyncMock, MagicMock

import pytest

from gateway.errors import Overloaded
from gateway.inference.request_spec import RequestSpec
from gateway.plugins.streams.options import StreamParameters
from gateway.plugins.streams.session import StreamSession
from tests.settings import Settings


async def test_stream_that_is_evicted_before_it_runs_ends_at_once():
    stream = StreamSession(
        MagicMock(), Settings(_env_file=None), MagicMock(), StreamParameters(), RequestSpec("m", "", None, 10.0, "r")
    )
    stream.evict(Overloaded("full", limit="max_streams", value=1))
    before = asyncio.all_tasks()
    with pytest.raises(Overloaded):
        await stream.serve(asyncio.Event().wait, AsyncMock())
    assert asyncio.all_tasks() == before, "no task of the stream goes on"
