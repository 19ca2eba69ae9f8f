"""The event loop of tests that control timing step by step."""

import asyncio
from collections.abc import Iterator

import pytest

from tests.doubles.scripted import Loop


@pytest.fixture
def loop() -> Iterator[Loop]:
    """After the test no task is left, and every service is idle."""
    with_loop = Loop()
    yield with_loop
    assert not asyncio.all_tasks(with_loop)
    assert [service for service in with_loop.services if not service.idle] == []
    assert not with_loop.unhandled
    with_loop.close()
