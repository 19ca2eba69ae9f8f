"""Admission: images that fit pass immediately, others wait in order, and nothing is counted twice."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from gateway.errors import Overloaded
from gateway.limits.admission import COSTLY_SECONDS, Admission
from gateway.limits.bounds import Lease


def admission(**limits: float) -> Admission:
    defaults = {"max_images": 2, "max_bytes": 100, "max_images_waiting": 2, "max_wait_seconds": 1}
    return Admission(**{**defaults, **limits})


def try_acquire(gate: Admission, *image: Any, **kind: Any) -> Lease | None:
    permit = gate.permit(*image, **kind)
    return permit if permit.try_acquire() else None


async def acquire(gate: Admission, *image: Any, **kind: Any) -> Lease:
    permit = gate.permit(*image, **kind)
    await permit.acquire()
    return permit


async def waits(*acquisitions: Coroutine[Any, Any, Lease]) -> list[asyncio.Task[Lease]]:
    """Images that have later to wait for their permits."""
    tasks = [asyncio.ensure_future(each) for each in acquisitions]
    await asyncio.sleep(0)
    return tasks


async def test_waiting_images_are_not_overtaken():
    gate = admission(max_images=10, max_bytes=100)
    held = await acquire(gate, 60)
    large, small = await waits(acquire(gate, 90), acquire(gate, 11))
    assert try_acquire(gate, 1) is None  # it would fit, as would the small one
    held.release()
    permit = await large
    assert not small.done()
    permit.release()
    (await small).release()


async def test_bytes_are_limited_and_an_oversized_image_is_admitted_alone():
    gate = admission(max_images=10, max_bytes=100)
    small = await acquire(gate, 1)
    assert [gate.has_room(*each) for each in ((9, 99), (9, 100), (10, 99))] == [True, False, False]
    (huge,) = await waits(acquire(gate, 1_000))
    assert not huge.done()
    small.release()
    permit = await huge
    assert try_acquire(gate, 1) is None
    permit.release()
    assert try_acquire(gate, 100) is not None


async def test_request_is_refused_at_once_if_the_queue_is_full():
    gate = admission(max_images=1, max_images_waiting=2)
    held = await acquire(gate, 1)
    waiting = [asyncio.ensure_future(acquire(gate, 1)) for _ in range(2)]
    gate.check()  # no image waits yet
    await asyncio.sleep(0)
    with pytest.raises(Overloaded, match=r"^2 images are already waiting, the maximum; try again later\."):
        gate.check()
    held.release()
    (await waiting[0]).release()
    gate.check()
    (await waiting[1]).release()


async def test_permit_can_be_reduced_to_what_is_still_needed():
    gate = admission(max_images=10, max_bytes=100)
    permit = await acquire(gate, 90)
    for nbytes in (10, 50):
        gate.decoded(permit, nbytes)
        assert gate.bytes.held == 10
    other = await acquire(gate, 90)
    permit.release()
    other.release()
    assert gate.bytes.held == 0


COSTLY = 2.4
"""Seconds of decoding, of which each decoder has two in flight."""


async def test_later_images_of_requests_do_not_fill_the_queue():
    gate = admission(max_images=10, max_images_waiting=4)
    held = await acquire(gate, 1, COSTLY)
    later = await waits(*(acquire(gate, 1, COSTLY, first=False) for _ in range(4)))
    gate.check()
    crowd = await waits(*(acquire(gate, 1, COSTLY) for _ in range(3)))
    assert [task.done() for task in crowd] == [False, False, True]  # half of the queue
    assert isinstance(crowd[2].exception(), Overloaded)
    gate.check()
    held.release()
    for task in (*later, *crowd[:2]):
        (await task).release()
    assert len(gate) == 0


async def test_cheap_images_pass_costly_ones_that_wait_for_a_decoder():
    gate = admission(max_images=10, max_images_waiting=10, decoders=2)
    decoding = [await acquire(gate, 1, COSTLY) for _ in range(2)]
    waiting = await waits(*(acquire(gate, 1, COSTLY) for _ in range(3)))
    assert len(gate) == 3
    assert try_acquire(gate, 1, COSTLY_SECONDS) is None
    cheap = [try_acquire(gate, 1, COSTLY_SECONDS * 0.99) for _ in range(8)]
    assert all(cheap)
    assert try_acquire(gate, 1) is None
    cheap[0].release()
    gate.decoded(decoding[0], 1)  # decoded, and still in flight
    await waiting[0]
    assert not waiting[1].done()
    for permit in (*cheap, *decoding):
        permit.release()
    gate.decoded(await waiting[1], 1)
    (await waiting[2]).release()


async def test_image_that_waits_for_a_decoder_keeps_no_bytes_free():
    gate = admission(max_images=10, max_bytes=100)
    cheap, decoding = try_acquire(gate, 50), try_acquire(gate, 30, COSTLY)
    (costly,) = await waits(acquire(gate, 40, COSTLY))
    assert try_acquire(gate, 41) is None
    passing = try_acquire(gate, 20)
    decoding.release()
    assert try_acquire(gate, 1) is None, "now it waits for bytes"
    for permit in (cheap, passing):
        permit.release()
    (await costly).release()


async def test_costly_images_take_half_of_the_queue():
    gate = admission(max_images=10, max_images_waiting=4)
    held = await acquire(gate, 1, COSTLY)
    crowd = await waits(*(acquire(gate, 1, COSTLY) for _ in range(5)))
    assert (len(gate), sum(task.done() for task in crowd)) == (2, 3)
    gate.check()
    assert all(isinstance(task.exception(), Overloaded) for task in crowd[2:])
    held.release()
    for task in crowd[:2]:
        (await task).release()


async def test_costly_images_leave_a_quarter_of_the_bytes():
    gate = admission(max_images=10, max_bytes=100, max_images_waiting=4, decoders=8)
    alone = await acquire(gate, 90, COSTLY)
    alone.release()
    held = await acquire(gate, 40, COSTLY)
    exact = await acquire(gate, 35, COSTLY)
    exact.release()
    (other,) = await waits(acquire(gate, 40, COSTLY))
    assert not other.done()
    assert try_acquire(gate, 60) is not None
    assert try_acquire(gate, 1) is None
    gate.decoded(held, 0)
    await asyncio.sleep(0)
    assert other.done()
    held.release()
    (await other).release()


async def test_costly_images_take_half_of_the_images_in_flight():
    gate = admission(max_images=4, max_images_waiting=4, decoders=8)
    held = [await acquire(gate, 1, COSTLY) for _ in range(2)]
    (third,) = await waits(acquire(gate, 1, COSTLY))
    assert not third.done()
    gate.decoded(held[0], 1)
    (await third).release()
