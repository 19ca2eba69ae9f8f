"""What is read from Triton is read once, however many requests want it at the same time."""

import asyncio
import traceback

import pytest

from gateway.errors import ModelNotFound
from gateway.triton.catalogue import Remembered

KEY = ("flowers", "1")


class Reader:
    """A read that ends when the test says so; it returns how often it was begun, or raises."""

    def __init__(self) -> None:
        self.begun = 0
        self.go_on = asyncio.Event()
        self.error: Exception | None = None

    async def __call__(self, name: str, version: str) -> int:
        assert (name, version) == KEY
        self.begun += 1
        number = self.begun
        await self.go_on.wait()
        if self.error is not None:
            raise self.error
        return number


async def started(remembered: Remembered[int], reader: Reader, count: int) -> list[asyncio.Task[int]]:
    tasks = [asyncio.create_task(remembered.get(KEY, reader)) for _ in range(count)]
    await asyncio.sleep(0)
    return tasks


async def test_many_requests_share_one_read():
    remembered, reader = Remembered[int](60), Reader()
    tasks = await started(remembered, reader, 5)
    reader.go_on.set()
    assert await asyncio.gather(*tasks) == [1] * 5
    assert await remembered.get(KEY, reader) == 1


async def test_error_is_raised_for_all_and_not_remembered():
    remembered, reader = Remembered[int](60), Reader()
    reader.error = ModelNotFound()
    tasks = await started(remembered, reader, 5)
    reader.go_on.set()
    assert await asyncio.gather(*tasks, return_exceptions=True) == [reader.error] * 5
    reader.error = None
    assert await remembered.get(KEY, reader) == 2


async def test_another_request_reads_when_the_first_is_cancelled():
    remembered, reader = Remembered[int](60), Reader()
    first, *others = await started(remembered, reader, 3)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    reader.go_on.set()
    assert await asyncio.gather(*others) == [2, 2]


async def test_cancelled_request_does_not_end_the_read_of_others():
    remembered, reader = Remembered[int](60), Reader()
    first, second, third = await started(remembered, reader, 3)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    reader.go_on.set()
    assert await asyncio.gather(first, third) == [1, 1]


async def test_shared_error_does_not_grow_with_each_request():
    """Its traceback is walked for each of them."""
    remembered, reader = Remembered[int](60), Reader()
    reader.error = ModelNotFound()
    tasks = await started(remembered, reader, 50)
    reader.go_on.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert len(list(traceback.walk_tb(reader.error.__traceback__))) < 10
