"""Bounds, and leases of them that take turns between clients, and between the requests of each."""

import asyncio

import pytest

from gateway.limits.bounds import Bound, FairQueue, Lease


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
    return FairQueue(Bound("slots", 1))


async def order_of(slots, waiting):
    """The order in which clients and requests, in their order of arrival, get the one slot."""
    order = []

    async def use(client, request):
        async with slots.lease(1, request=request, client=client):
            order.append(client + request)
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group, slots.lease(1):
        for name in waiting:
            group.create_task(use(name[0], name[1:]))
        await asyncio.sleep(0)
    return order


async def test_requests_of_one_client_alternate(slots):
    assert await order_of(slots, ["a1", "a1", "a1", "a2"]) == ["a1", "a2", "a1", "a1"]


async def test_clients_alternate_whatever_their_requests(slots):
    """One client's third request is served after the other client's only one."""
    assert await order_of(slots, ["a1", "a2", "a3", "b1"]) == ["a1", "b1", "a2", "a3"]


async def test_lease_waits_only_for_what_it_needs():
    """One that lacks a bound delays the ones behind it that need the same bound, and no others."""
    common, scarce = Bound("common", 10), Bound("scarce", 2)
    queue = FairQueue(common)
    held, wide, narrow = (Lease(queue, {common: 1, scarce: most}, client=most) for most in (1, 2, 1))
    await held.acquire()
    waiting = asyncio.ensure_future(wide.acquire())
    await asyncio.sleep(0)
    assert not narrow.try_acquire(), "it would fit"
    free = Lease(queue, {common: 1})
    assert free.try_acquire()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert narrow.try_acquire()
    for lease in (held, narrow, free):
        lease.release()
    assert (common.held, scarce.held, len(queue)) == (0, 0, 0)
