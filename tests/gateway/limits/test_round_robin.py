"""Leases that alternate between clients, between the requests of each, and that are given up for others."""

import asyncio

import pytest

from gateway.limits.lease import Bound
from gateway.limits.round_robin import RoundRobin


@pytest.fixture
def slots():
    return RoundRobin(Bound("slots", 1))


async def order_of(slots, waiting):
    """The order in which clients and requests, in their order of arrival, get the one slot."""
    order = []

    async def use(client, request):
        async with slots.lease(request, 1, client=client):
            order.append(client + request)
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group, slots.lease("holder", 1):
        for name in waiting:
            group.create_task(use(name[0], name[1:]))
        await asyncio.sleep(0)
    return order


async def test_requests_of_one_client_alternate(slots):
    assert await order_of(slots, ["a1", "a1", "a1", "a2"]) == ["a1", "a2", "a1", "a1"]


async def test_clients_alternate_whatever_their_requests(slots):
    """One client's third request is served after the other client's only one."""
    assert await order_of(slots, ["a1", "a2", "a3", "b1"]) == ["a1", "b1", "a2", "a3"]


async def test_lease_is_given_up_for_the_next_one(slots):
    lease = await slots.acquire("a", 1)
    slots.offer(lease.release)
    assert slots.bounds[0].free == 0  # nobody waits
    (await slots.acquire("b", 1)).release()


async def test_lease_is_given_up_while_another_waits(slots):
    lease = await slots.acquire("a", 1)
    waiting = asyncio.ensure_future(slots.acquire("b", 1))
    await asyncio.sleep(0)
    slots.offer(lease.release)
    (await waiting).release()


async def test_withdrawn_offer_is_not_taken(slots):
    lease = await slots.acquire("a", 1)
    slots.offer(lease.release)
    slots.withdraw(lease.release)
    waiting = asyncio.ensure_future(slots.acquire("b", 1))
    await asyncio.sleep(0)
    assert not waiting.done()
    lease.release()
    (await waiting).release()
