"""A stream delivers results in the order of its items, a few at a time, and ends when it is idle."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

import pytest

from gateway.errors import Overloaded, StreamIdle
from gateway_plugins.shared.ordered_stream import OrderedStream

Result = asyncio.Future[str]


class Letters(OrderedStream[Result]):
    """Reads letters from a queue, None is the last one; a test sets their results."""

    def __init__(self, *, in_flight: int = 2, idle_limit_seconds: float = 60.0) -> None:
        super().__init__(in_flight=in_flight, idle_limit_seconds=idle_limit_seconds, noun="letter")
        self.sent: asyncio.Queue[str | None] = asyncio.Queue()
        self.delivered: list[str] = []
        self.results: dict[str, Result] = {}
        self.unread = 0.0
        self.works = 0

    @property
    def unread_seconds(self) -> float:
        return self.unread

    async def deliver(self, item: Result) -> None:
        self.delivered.append(await item)

    async def serve(self) -> None:
        await self.run(self.read)

    async def read(self) -> None:
        while True:
            await self.slot()
            letter = await self.receive(self.sent.get)
            if letter is None:
                self.enqueue(None)
                return
            self.arrived()
            self.results[letter] = asyncio.get_running_loop().create_future()
            self.enqueue(self.results[letter])
            self.start(self.work)

    async def work(self) -> None:
        self.works += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.works -= 1


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  # no event
            await asyncio.sleep(0)


async def test_results_are_delivered_in_order():
    stream = Letters()
    task = asyncio.create_task(stream.serve())
    for letter in ("a", "b", None):
        stream.sent.put_nowait(letter)
    await until(lambda: len(stream.results) == 2)
    stream.results["b"].set_result("b")
    await asyncio.sleep(0)
    assert stream.delivered == []
    stream.results["a"].set_result("a")
    await task
    assert (stream.delivered, stream.works) == (["a", "b"], 0)


async def test_further_items_wait_for_a_slot():
    stream = Letters(in_flight=2)
    task = asyncio.create_task(stream.serve())
    for letter in ("a", "b", "c", None):
        stream.sent.put_nowait(letter)
    await until(lambda: len(stream.results) == 2)
    for _ in range(20):
        await asyncio.sleep(0)
    assert stream.sent.qsize() == 2
    stream.results["a"].set_result("a")
    await until(lambda: "c" in stream.results)
    for letter in "bc":
        stream.results[letter].set_result(letter)
    await task
    assert stream.delivered == ["a", "b", "c"]


async def test_stream_without_items_ends():
    with pytest.raises(StreamIdle) as raised:
        await Letters(idle_limit_seconds=0.01).serve()
    assert raised.value.details == {"limit": "stream_idle_seconds", "value": 0.01}
    assert str(raised.value) == "No letter came for 0.01 s."


async def test_item_in_progress_keeps_the_stream():
    """The limit passes many times; the stream ends once the result has been delivered for that long."""
    stream = Letters(idle_limit_seconds=0.001)
    stream.sent.put_nowait("a")
    task = asyncio.create_task(stream.serve())
    await until(lambda: stream.works)
    until_passed = asyncio.get_running_loop().time() + 0.02
    await until(lambda: asyncio.get_running_loop().time() > until_passed)
    assert (stream.idle_seconds, task.done()) == (0.0, False)
    stream.results["a"].set_result("a")
    with pytest.raises(StreamIdle):
        await task
    assert stream.delivered == ["a"]


async def test_unread_response_makes_the_stream_idle():
    stream = Letters()
    stream.sent.put_nowait("a")
    task = asyncio.create_task(stream.serve())
    await until(lambda: stream.works)
    assert not stream.is_idle
    stream.unread = 9.0
    assert (stream.is_idle, stream.eviction_score(1)) == (True, 9.0)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert stream.works == 0


@pytest.mark.parametrize("runs", [True, False], ids=["while it runs", "before it runs"])
async def test_evicted_stream_ends_at_once(runs):
    stream = Letters()
    stream.sent.put_nowait("a")
    error = Overloaded("full", limit="max_streams", value=1)
    if not runs:
        stream.evict(error)
    task = asyncio.create_task(stream.serve())
    if runs:
        await until(lambda: stream.works)
        stream.evict(error)
    with pytest.raises(Overloaded):
        await task
    assert (stream.delivered, stream.works) == ([], 0)


async def test_stopped_stream_takes_no_more_items():
    stream = Letters()
    task = asyncio.create_task(stream.serve())
    await asyncio.sleep(0)
    stream.stop(Overloaded("stopping", limit="", value=0))
    with pytest.raises(Overloaded, match="stopping"):
        await task


async def test_failed_work_ends_the_stream():
    class Failing(Letters):
        async def work(self) -> None:
            raise ValueError

    stream = Failing()
    stream.sent.put_nowait("a")
    with pytest.raises(ValueError):
        await stream.serve()
