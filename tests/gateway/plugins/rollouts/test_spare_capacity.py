"""Spare capacity: leased only while permits are free, and never at the cost of one."""

from gateway.limits.admission import Admission
from gateway.plugins.rollouts.shadow import SpareCapacity


def admission(max_images: int = 8, max_bytes: int = 800) -> Admission:
    return Admission(max_images=max_images, max_bytes=max_bytes, max_images_waiting=1, max_wait_seconds=1)


def test_spare_capacity_is_a_quarter_of_each_limit():
    spare = SpareCapacity(admission())
    assert spare.take(3, 3) is None
    assert spare.take(1, 201) is None
    place = spare.take(2, 200)
    assert spare.take(1, 0) is None
    place.release()
    place.release()
    assert (spare.images.held, spare.bytes.held) == (0, 0)


def test_leases_do_not_fill_the_queue():
    gate = admission(max_images=1)
    spare = SpareCapacity(gate)
    assert spare.take(1, 1) is not None
    assert spare.take(1, 1) is None
    gate.check()  # raises Overloaded if a place was taken for a waiting image
