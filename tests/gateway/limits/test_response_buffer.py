"""The bytes of answers that a process holds: at the limit, one past it, and who goes then."""

import asyncio

import pytest
from prometheus_client import REGISTRY

from gateway.errors import Overloaded
from gateway.limits.response_buffer import HeldResponse, ResponseBuffer
from tests.gateway.api.stub import PNG, client_of

MAX = 100


def close_none() -> bool:
    return False


def counted() -> float:
    value = REGISTRY.get_sample_value("gateway_answer_bytes")
    assert value is not None
    return value


async def test_responses_are_counted_while_they_are_buffered():
    buffer, before = ResponseBuffer(MAX, close_none), counted()
    with buffer.open() as one, buffer.open() as other:
        await one.grow(60)
        await other.grow(40)
        assert (buffer.nbytes, counted() - before) == (MAX, MAX)
        one.shrink(10)
        await other.grow(10)
        one.shrink(1_000)  # more than there is
        assert (one.nbytes, other.nbytes) == (0, 50)
    assert (buffer.nbytes, counted() - before) == (0, 0)


async def test_one_byte_past_the_limit_is_refused_without_slow_readers():
    buffer = ResponseBuffer(MAX, close_none)
    with buffer.open() as one, buffer.open() as other:
        await one.grow(60)
        await other.grow(40)
        with pytest.raises(Overloaded) as raised:
            await other.grow(1)
        assert raised.value.details == {"limit": "max_bytes_unread", "value": MAX}
        assert buffer.nbytes == MAX


async def test_oversized_response_is_sent_if_the_buffer_is_empty():
    buffer = ResponseBuffer(MAX, close_none)
    with buffer.open() as large, buffer.open() as small:
        await large.grow(60)
        await large.grow(MAX)
        with pytest.raises(Overloaded):
            await small.grow(1)


async def test_as_many_slow_readers_are_evicted_as_necessary():
    slow: list[HeldResponse] = []

    def close_slowest() -> bool:
        if not slow:
            return False
        # as when a connection is lost: its answer ends a little later
        asyncio.get_running_loop().call_later(0.01, slow.pop(0).__exit__, None, None, None)
        return True

    buffer = ResponseBuffer(MAX, close_slowest)
    slow += [buffer.open() for _ in range(3)]
    for answer in slow:
        await answer.grow(30)
    with buffer.open() as newcomer:
        await newcomer.grow(65)
        assert (len(slow), newcomer.nbytes, buffer.nbytes) == (1, 65, 95)


@pytest.mark.parametrize("ask", [{"params": {"top_k": 1}}, {"params": {"format": "huggingface"}}])
def test_read_response_is_not_buffered(ask):
    before = counted()
    with client_of() as client:
        answer = client.post("/predict", files=[("f", ("x.png", PNG))], **ask)
        assert (answer.status_code, counted() - before) == (200, 0)
