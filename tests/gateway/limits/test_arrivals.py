"""Messages that arrive: the last call gets the next slot, and the oldest message leaves when its slot is needed."""

import asyncio

import pytest

from gateway.errors import Overloaded, UploadTimeout
from gateway.limits.arrivals import Arrivals
from gateway.limits.pools import IDLE_SECONDS

WAIT_SECONDS = 60.0


def arrivals_of(most: int, *, wait: float = WAIT_SECONDS, timeout: float = WAIT_SECONDS) -> Arrivals:
    return Arrivals(most, max_wait_seconds=wait, timeout_seconds=timeout)


async def at_once() -> bytes:
    return b"message"


async def never() -> bytes:
    await asyncio.Event().wait()
    raise AssertionError


async def begun(*tasks: "asyncio.Task[bytes]") -> None:
    """Wait until tasks have run as far as they can."""
    for _ in range(5):
        await asyncio.sleep(0)
    assert not any(task.done() for task in tasks)


async def test_message_that_arrives_is_returned():
    arrivals = arrivals_of(1)
    assert [await arrivals.receive(at_once) for _ in range(3)] == [b"message"] * 3


async def test_messages_up_to_the_limit_arrive_at_once():
    arrivals = arrivals_of(2)
    slow = asyncio.create_task(arrivals.receive(never))
    await begun(slow)
    assert await arrivals.receive(at_once) == b"message"
    assert not slow.done()
    slow.cancel()
    await asyncio.wait([slow])


async def test_oldest_message_gives_its_slot_to_one_that_waits():
    arrivals = arrivals_of(2)
    oldest, newer = (asyncio.create_task(arrivals.receive(never)) for _ in range(2))
    await begun(oldest, newer)
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert await arrivals.receive(at_once) == b"message"
    assert loop.time() - began >= IDLE_SECONDS * 0.9
    with pytest.raises(Overloaded, match="this one has taken longest"):
        await oldest
    assert not newer.done()
    newer.cancel()
    await asyncio.wait([newer])


async def test_each_message_that_waits_hurries_another_one():
    arrivals = arrivals_of(2)
    slow = [asyncio.create_task(arrivals.receive(never)) for _ in range(2)]
    await begun(*slow)
    assert await asyncio.gather(*(arrivals.receive(at_once) for _ in range(2))) == [b"message"] * 2
    assert all(isinstance(each, Overloaded) for each in await asyncio.gather(*slow, return_exceptions=True))


async def test_last_call_gets_the_next_slot():
    """Many calls that send nothing and wait do not keep a new one from its slot."""
    arrivals = arrivals_of(1)
    silent = [asyncio.create_task(arrivals.receive(never)) for _ in range(50)]
    await begun(*silent)
    assert await arrivals.receive(at_once) == b"message"
    assert sum(not each.done() for each in silent) == 49
    for each in silent:
        each.cancel()
    await asyncio.wait(silent)
    assert await arrivals.receive(at_once) == b"message"


async def test_waiters_are_served_one_after_the_other():
    arrivals = arrivals_of(1)
    silent = [asyncio.create_task(arrivals.receive(never)) for _ in range(3)]
    assert await asyncio.gather(*(arrivals.receive(at_once) for _ in range(3))) == [b"message"] * 3
    first, second = await asyncio.gather(silent[0], silent[2], return_exceptions=True)
    assert isinstance(first, Overloaded)
    assert isinstance(second, Overloaded)  # the last one got the slot, and the one before it waited
    silent[1].cancel()
    await asyncio.wait([silent[1]])


async def test_message_without_a_slot_is_refused():
    arrivals = arrivals_of(1, wait=0.01)
    slow = asyncio.create_task(arrivals.receive(never))
    await begun(slow)
    with pytest.raises(Overloaded, match="Too many messages") as refused:
        await arrivals.receive(at_once)
    assert refused.value.details == {"limit": "max_wait_seconds", "value": 0.01}
    slow.cancel()
    await asyncio.wait([slow])


async def test_message_that_never_arrives_times_out():
    arrivals = arrivals_of(1, timeout=0.01)
    with pytest.raises(UploadTimeout, match="upload_timeout_seconds"):
        await arrivals.receive(never)
    assert await arrivals.receive(at_once) == b"message"


async def test_failed_or_cancelled_read_frees_its_slot():
    arrivals = arrivals_of(1)

    async def fail() -> bytes:
        raise ConnectionError

    with pytest.raises(ConnectionError):
        await arrivals.receive(fail)
    cancelled = asyncio.create_task(arrivals.receive(never))
    await begun(cancelled)
    cancelled.cancel()
    await asyncio.wait([cancelled])
    assert await arrivals.receive(at_once) == b"message"
