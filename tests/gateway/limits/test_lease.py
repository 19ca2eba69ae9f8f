"""Leases: what they return and when, and that waiting requests are notified.

At the end, leases that alternate between clients, and between the requests of each, and leases given up for others.
"""

import asyncio

import pytest

from gateway.limits.pools import Bound, RoundRobin


@pytest.mark.parametrize(
    ("name", "most", "words"),
    [("max_images_in_flight", 1_024, "at most 1,024"), ("max_bytes_waiting", 64 * 2**20, "at most 64 MiB")],
)
def test_error_of_a_full_bound_names_the_setting_and_its_value(name, most, words):
    error = Bound(name, most).full("at most {}")
    assert str(error) == words
    assert error.details == {"limit": name, "value": most}


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


async def test_lease_is_given_up_for_another_that_comes_or_waits(slots):
    lease = await slots.acquire("a", 1)
    slots.offer(lease.release)
    assert slots.bounds[0].free == 0  # no request waits
    lease = await slots.acquire("b", 1)
    waiting = asyncio.ensure_future(slots.acquire("c", 1))
    await asyncio.sleep(0)
    slots.offer(lease.release)
    (await waiting).release()
