"""Leases: what they return and when, and that waiting requests are notified.

At the end, those that alternate between clients, between the requests of each, and that are given up for others.
"""

import asyncio

import pytest
from prometheus_client import CollectorRegistry, Gauge

from gateway.limits.lease import Bound, Lease, admission
from gateway.limits.round_robin import RoundRobin


class Freed:
    """Counts the calls."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


@pytest.mark.parametrize(
    ("name", "most", "words"),
    [("max_images_in_flight", 1_024, "at most 1,024"), ("max_bytes_waiting", 64 * 2**20, "at most 64 MiB")],
)
def test_error_of_a_full_bound_names_the_setting_and_its_value(name, most, words):
    error = Bound(name, most).full("at most {}")
    assert str(error) == words
    assert error.details == {"limit": name, "value": most}


def test_bound_has_gauges_of_what_is_held_and_of_its_limit():
    held, most = (Gauge(name, "d", registry=CollectorRegistry()) for name in ("held", "most"))
    bound = Bound("n", 10, held, most)
    with Lease([bound], [7]):
        assert (bound.held, bound.free) == (7, 3)
        values = [each.samples[0].value for gauge in (held, most) for each in gauge.collect()]
    assert values == [7, 10]
    assert (bound.held, bound.free) == (0, 10)


def test_release_is_heard_once_and_taking_is_not():
    bound, freed = Bound("n", 10), Freed()
    lease = Lease([bound], [7], freed)
    empty = Lease([bound], [0], freed)
    empty.release()
    assert freed.count == 0
    lease.release()
    lease.release()
    assert (bound.held, freed.count) == (0, 1)


def test_one_of_several_bounds_is_freed():
    """What is heard does not depend on the order of the bounds."""
    for amounts in ([3, 0], [0, 3]):
        bounds, freed = [Bound("a", 10), Bound("b", 10)], Freed()
        Lease(bounds, amounts, freed).release()
        assert ([bound.held for bound in bounds], freed.count) == ([0, 0], 1)


def test_each_bound_has_one_amount():
    with pytest.raises(ValueError, match="zip"):
        Lease([Bound("a", 10)], [1, 2])


@pytest.mark.parametrize("released_first", [True, False])
def test_uncancellable_work_holds_everything_until_it_has_ended(released_first):
    bound, freed = Bound("n", 10), Freed()
    lease = Lease([bound], [7], freed)
    lease.keep()
    if released_first:
        lease.release()
    assert (bound.held, freed.count) == (7, 0)
    lease.settle()
    assert bound.held == (0 if released_first else 7)
    lease.release()
    assert (bound.held, freed.count) == (0, 1)


async def test_cancelled_wait_gives_back_or_leaves():
    """A lease that is admitted at the moment of the cancellation is released; otherwise the client leaves the queue."""
    loop, bound = asyncio.get_running_loop(), Bound("n", 10)
    for outcome, left in (("lease", 0), ("error", 1), ("nothing", 1)):
        admitted: asyncio.Future[Lease] = loop.create_future()
        leave = Freed()
        waiting = asyncio.ensure_future(admission(admitted, leave))
        await asyncio.sleep(0)
        if outcome == "lease":
            admitted.set_result(Lease([bound], [7]))
        elif outcome == "error":
            admitted.set_exception(RuntimeError)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert (bound.held, leave.count) == (0, left), outcome


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


async def test_withdrawn_offer_is_not_taken(slots):
    lease = await slots.acquire("a", 1)
    slots.offer(lease.release)
    slots.withdraw(lease.release)
    waiting = asyncio.ensure_future(slots.acquire("b", 1))
    await asyncio.sleep(0)
    assert not waiting.done()
    lease.release()
    (await waiting).release()
