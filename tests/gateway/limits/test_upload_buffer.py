"""The bytes of uploads that a process holds: at the limit, one past it, and who goes then."""

import pytest
from prometheus_client import REGISTRY

from gateway.errors import Overloaded
from gateway.limits.pace import Pace
from gateway.limits.upload_buffer import HeldBytes, UploadBuffer

MAX = 100


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def uploads() -> UploadBuffer:
    return UploadBuffer(MAX)


def opened(uploads: UploadBuffer, clock: Clock, *, nbytes: int, speed: float, waits: bool = True) -> HeldBytes:
    """An upload that holds `nbytes` and has come with `speed` bytes a second so far."""
    buffer = uploads.open(Pace(min_bytes_per_second=1, grace_seconds=1_000, now=clock))
    buffer.pace.wait()
    clock.seconds += 1
    buffer.pace.receive(int(speed))
    buffer.hold(nbytes)
    if waits:
        buffer.pace.wait()
    return buffer


def test_only_buffered_bytes_are_counted(uploads, clock):
    with opened(uploads, clock, nbytes=0, speed=10) as buffer:
        for _ in range(50):
            buffer.hold(60)
            buffer.hold(0)
        buffer.hold(MAX)
        assert uploads.nbytes == MAX
    assert uploads.nbytes == 0


def test_one_byte_past_the_limit_evicts_an_upload(uploads, clock):
    buffer = opened(uploads, clock, nbytes=MAX, speed=10)
    with pytest.raises(Overloaded) as raised:
        buffer.hold(MAX + 1)
    assert raised.value.details == {"limit": "max_bytes_waiting", "value": MAX}
    assert uploads.nbytes == MAX


def test_slow_upload_is_evicted_before_a_new_one(uploads, clock):
    ended = []
    slow = opened(uploads, clock, nbytes=60, speed=1)
    slow.on_refusal = lambda: ended.append("slow")
    fast = opened(uploads, clock, nbytes=40, speed=1_000)
    newcomer = opened(uploads, clock, nbytes=10, speed=100)
    assert (slow.nbytes, fast.nbytes, newcomer.nbytes, uploads.nbytes) == (0, 40, 10, 50)
    assert ended == ["slow"]
    assert slow.refusal.details == {"limit": "max_bytes_waiting", "value": MAX}
    assert fast.refusal is None


def test_as_many_stalled_uploads_are_evicted_as_necessary(uploads, clock):
    stalled = [opened(uploads, clock, nbytes=25, speed=speed) for speed in (400, 10, 300, 50)]
    displaced = REGISTRY.get_sample_value("gateway_uploads_displaced_total")
    newcomer = opened(uploads, clock, nbytes=40, speed=1_000)
    assert newcomer.nbytes == 40
    assert [bool(buffer.refusal) for buffer in stalled] == [False, True, False, True]
    assert REGISTRY.get_sample_value("gateway_uploads_displaced_total") == displaced + 2


def test_requesting_upload_is_evicted_if_it_is_the_slowest(uploads, clock):
    fast = opened(uploads, clock, nbytes=60, speed=10_000)
    with pytest.raises(Overloaded):
        opened(uploads, clock, nbytes=50, speed=10)
    assert fast.refusal is None


def test_larger_of_two_equally_fast_uploads_is_evicted(uploads, clock):
    little, much = (opened(uploads, clock, nbytes=nbytes, speed=500) for nbytes in (10, 80))
    opened(uploads, clock, nbytes=20, speed=500)
    assert (little.refusal, bool(much.refusal)) == (None, True)


def test_uploads_that_wait_for_a_permit_are_not_evicted(uploads, clock):
    complete = opened(uploads, clock, nbytes=90, speed=1, waits=False)
    with pytest.raises(Overloaded):
        opened(uploads, clock, nbytes=20, speed=1_000)
    assert complete.refusal is None


def test_evicted_upload_holds_no_bytes_and_is_counted_once(uploads, clock):
    slow = opened(uploads, clock, nbytes=90, speed=1)
    with opened(uploads, clock, nbytes=20, speed=100), slow:
        assert uploads.nbytes == 20
    assert uploads.nbytes == 0
