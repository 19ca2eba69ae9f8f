"""Streams of clients: an end that only a race shows, and the account. The tests of streams cover the rest."""

import asyncio
from unittest.mock import AsyncMock, MagicMock

import pytest

from gateway.errors import Overloaded, TooCostly
from gateway.inference.request_spec import RequestSpec
from gateway.plugins.streams.options import StreamParameters
from gateway.plugins.streams.session import StreamSession
from gateway.plugins.streams.stream_account import StreamAccount
from tests.doubles.clock import Clock
from tests.settings import Settings

BASE, MOST = 3.0, 3.0


async def test_stream_that_is_evicted_before_it_runs_ends_at_once():
    stream = StreamSession(
        MagicMock(), Settings(_env_file=None), MagicMock(), StreamParameters(), RequestSpec("m", "", None, 10.0, "r")
    )
    stream.evict(Overloaded("full", limit="max_streams", value=1))
    before = asyncio.all_tasks()
    with pytest.raises(Overloaded):
        await stream.serve(asyncio.Event().wait, AsyncMock())
    assert asyncio.all_tasks() == before, "no task of the stream goes on"


async def test_account_of_a_stream_refills_to_its_initial_balance():
    clock = Clock(100.0)
    stream = StreamAccount(BASE, MOST, now=clock)
    stream.add_image(10**7)
    assert stream.try_pay(BASE)
    with pytest.raises(TooCostly, match="1 s of processor time a second"):
        await stream.pay(0.1)
    clock.seconds += 0.5
    assert stream.try_pay(0.5)
    assert not stream.try_pay(0.01)
    clock.seconds += 3_600
    assert stream.try_pay(BASE)
    assert not stream.try_pay(0.01)
