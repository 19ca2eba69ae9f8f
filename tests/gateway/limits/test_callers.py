"""Admission of several callers: their parts of the permits and of the queue."""

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import Overloaded
from gateway.limits.admission import COSTLY_SECONDS, Admission
from gateway.limits.bounds import Bound, Lease
from gateway.limits.caller import Caller
from gateway.plugins.keys.tenant import BULK_WEIGHT
from tests.gateway.limits.test_admission import acquire, try_acquire, waits


def caller_of(weight: float = 1.0, images: Bound | None = None) -> Caller:
    caller = Caller()
    caller.weight, caller.images = weight, images
    return caller


def admission(**limits: float) -> Admission:
    return Admission(**{"max_images": 1, "max_bytes": 100, "max_images_waiting": 100, "max_wait_seconds": 1, **limits})


async def order_of(gate: Admission, **senders: tuple[Caller, int, int]) -> list[str]:
    """The order in which images get the only permit: of callers, each with some tasks that send some images each."""
    order: list[str] = []

    async def send(name: str, caller: Caller, images: int) -> None:
        for _ in range(images):
            permit = await acquire(gate, 1, caller=caller, lowest=name == "lowest")
            order.append(name)
            permit.release()

    held = await acquire(gate, 1)
    async with asyncio.TaskGroup() as group:
        for name, (caller, tasks, images) in senders.items():
            for _ in range(tasks):
                group.create_task(send(name, caller, images))
        await asyncio.sleep(0)
        held.release()
    return order


@pytest.mark.parametrize(("weight", "expected"), [(1.0, 10), (0.5, 5), (2.0, 20), (BULK_WEIGHT, 1)])
async def test_callers_alternate_by_their_weights(weight, expected):
    """While both wait, a caller gets permits in proportion to its weight."""
    gate = admission(max_images_waiting=200)
    order = await order_of(gate, flood=(caller_of(weight), 90, 1), other=(caller_of(1.0), 90, 1))
    at_tenth = [number for number, name in enumerate(order) if name == "other"][9]
    assert abs(order[:at_tenth].count("flood") - expected) <= 1


async def test_caller_with_one_image_at_a_time_gets_its_part():
    """And no more: the images of a crowd do not wait for all that it sends."""
    order = await order_of(admission(), crowd=(caller_of(), 10, 1), single=(caller_of(), 1, 10))
    assert abs(order[:10].count("single") - 5) <= 1


async def test_caller_at_its_bound_delays_no_other():
    """Neither a caller of large images, nor one of images that wait for a decoder."""
    gate, bounded, other = admission(max_images=4), caller_of(1.0, Bound("share", 1)), caller_of()
    held = await acquire(gate, 50, caller=bounded)
    (waiting,) = await waits(acquire(gate, 60, COSTLY_SECONDS, caller=bounded))
    passing = [try_acquire(gate, 20, COSTLY_SECONDS, caller=other), try_acquire(gate, 20, caller=other)]
    for permit in (*passing, held):
        permit.release()
    (await waiting).release()


async def test_lowest_priority_gets_one_permit_in_a_hundred():
    gate, caller = admission(max_images_waiting=400), caller_of()
    order = await order_of(gate, lowest=(caller, 20, 1), others=(caller, 300, 1))
    assert Counter(order[:210])["lowest"] in range(1, 4)


async def test_lowest_priority_has_at_most_a_part_of_the_permits():
    """All requests of that priority together, for all shares of their keys."""
    gate = admission(max_images=8)
    one, other = (caller_of(1.0, Bound("share", 8)) for _ in range(2))
    held = [await acquire(gate, 1, caller=share, lowest=True) for share in (one, other)]
    assert try_acquire(gate, 1, caller=one, lowest=True) is None
    assert (one.images.held, other.images.held) == (1, 1)
    assert try_acquire(gate, 1, caller=one) is not None
    held[0].release()
    assert try_acquire(gate, 1, caller=other, lowest=True) is not None
    held[1].release()


async def test_lowest_priority_gives_way_when_the_queue_is_full():
    gate = admission(max_images_waiting=1)
    held = await acquire(gate, 1)
    (lowest,) = await waits(acquire(gate, 1, lowest=True))
    other = asyncio.ensure_future(acquire(gate, 1))
    with pytest.raises(Overloaded):
        await lowest
    held.release()
    (await other).release()


async def test_full_queue_evicts_the_newest_of_the_most_crowded_caller():
    gate, flood, other = admission(max_images_waiting=4), caller_of(), caller_of()
    held = await acquire(gate, 1)
    waiting = await waits(*(acquire(gate, 1, caller=flood) for _ in range(4)))
    with pytest.raises(Overloaded):
        gate.check(flood)
    gate.check(other)
    late = await waits(*(acquire(gate, 1, caller=other) for _ in range(2)))
    await asyncio.sleep(0)
    assert [isinstance(each.exception(), Overloaded) if each.done() else None for each in waiting] == [None, None, 1, 1]
    with pytest.raises(Overloaded):
        gate.check(other)  # both have half of the queue
    with pytest.raises(Overloaded):
        await acquire(gate, 1, caller=other)
    held.release()
    for each in (waiting[0], late[0], waiting[1], late[1]):
        (await each).release()


async def test_full_queue_evicts_no_later_image_of_a_request():
    gate, flood, other = admission(max_images_waiting=3), caller_of(), caller_of()
    held = await acquire(gate, 1)
    waiting = await waits(*(acquire(gate, 1, caller=flood, first=number != 3) for number in range(4)))
    waiting += await waits(acquire(gate, 1, caller=other))
    await asyncio.sleep(0)
    assert isinstance(waiting.pop(2).exception(), Overloaded)
    held.release()
    for each in (waiting[0], waiting[3], waiting[1], waiting[2]):
        (await each).release()


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["acquire", "acquire", "release", "cancel"]), st.integers(0, 10)), max_size=60
    ),
    mosts=st.lists(st.sampled_from([None, 1, 2, 5]), min_size=3, max_size=3),
)
async def test_no_permit_is_lost_and_no_image_waits_that_could_be_admitted(steps, mosts):
    gate = admission(max_images=4, max_images_waiting=6)
    callers = [
        caller_of(1 / (number + 1), None if most is None else Bound("share", most)) for number, most in enumerate(mosts)
    ]
    waiting: list[asyncio.Task[Lease]] = []
    held: list[Lease] = []
    later = 0
    for step, number in steps:
        if step == "acquire":
            later += number > 7
            waiting.append(asyncio.ensure_future(acquire(gate, 1, caller=callers[number % 3], first=number <= 7)))
        elif step == "release" and held:
            held.pop(number % len(held)).release()
        elif step == "cancel" and waiting:
            waiting[number % len(waiting)].cancel()
        for _ in range(4):
            await asyncio.sleep(0)
        done = [each for each in waiting if each.done()]
        waiting = [each for each in waiting if not each.done()]
        held += [each.result() for each in done if not each.cancelled() and each.exception() is None]
        assert gate.images.held == len(held)
        assert len(gate) == len(waiting)
        assert len(gate) <= 6 + later
        in_queue = {lease.client[0] for lease in gate}
        assert gate.images.free == 0 or all(each.images is not None and not each.images.free for each in in_queue)
    for each in held:
        each.release()
    while waiting:
        done, left = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        waiting = list(left)
        for task in done:
            task.result().release()
    assert (gate.images.held, len(gate)) == (0, 0)
    assert all(each.images is None or each.images.held == 0 for each in callers)
