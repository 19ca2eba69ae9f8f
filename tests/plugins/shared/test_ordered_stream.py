"""Ends of an ordered stream that its client does not cause; the tests of oip and streams cover its order."""

import asyncio
from contextlib import suppress

import pytest

from gateway.errors import Overloaded
from gateway_plugins.shared.ordered_stream import OrderedStream
from tests.gateway.triton.fleet import wait_until

Result = asyncio.Future[str]


class Letters(OrderedStream[Result]):
    """Reads letters from a queue; the work of each lasts until the stream ends."""

    def __init__(self) -> None:
        super().__init__(in_flight=2, idle_limit_seconds=60.0, noun="letter")
        self.sent: asyncio.Queue[str] = asyncio.Queue()
        self.unread = 0.0
        self.works = 0

    @property
    def unread_seconds(self) -> float:
        return self.unread

    async def deliver(self, item: Result) -> None:
        await item

    async def serve(self) -> None:
        await self.run(self.read)

    async def read(self) -> None:
        while True:
            await self.slot()
            await self.receive(self.sent.get)
            self.arrived()
            self.enqueue(asyncio.get_running_loop().create_future())
            self.start(self.work)

    async def work(self) -> None:
        self.works += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.works -= 1


async def test_unread_response_makes_the_stream_idle():
    stream = Letters()
    stream.sent.put_nowait("a")
    task = asyncio.create_task(stream.serve())
    await wait_until(lambda: stream.works > 0)
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
        await wait_until(lambda: stream.works > 0)
        stream.evict(error)
    with pytest.raises(Overloaded):
        await task
    assert stream.works == 0


async def test_stopped_stream_takes_no_more_items():
    stream = Letters()
    task = asyncio.create_task(stream.serve())
    await asyncio.sleep(0)
    stream.stop(Overloaded("stopping", limit="", value=0))
    with pytest.raises(Overloaded, match="stopping"):
        await task
