"""Pools: at the limit and one past it, and which client is evicted then."""

import pytest
from prometheus_client import REGISTRY

from gateway.errors import Overloaded
from gateway.limits.bounds import Bound
from gateway.limits.pools import Pace, Pool, PoolLease, Uploader, response_buffer, upload_buffer
from tests.doubles.clock import Clock

MAX = 100


class Upload:
    """A client that has sent with `speed` bytes a second so far, and notes why it is evicted."""

    error: Overloaded | None = None

    def __init__(self, clock: Clock, speed: float) -> None:
        self.pace = Pace(min_bytes_per_second=1, grace_seconds=1_000, now=clock)
        self.pace.wait()
        clock.seconds += 1
        self.pace.receive(int(speed))

    def evict(self, error: Overloaded) -> None:
        self.error = error


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def uploads() -> Pool:
    return upload_buffer(MAX)


def opened(uploads: Pool, clock: Clock, *, nbytes: int, speed: float, is_idle: bool = True) -> tuple[Upload, PoolLease]:
    """An upload that holds `nbytes`, and is idle while the gateway waits for it."""
    upload = Upload(clock, speed)
    lease = uploads.lease(Uploader(upload.pace, upload.evict), nbytes)
    if is_idle:
        upload.pace.wait()
    return upload, lease


def counted(name: str) -> float:
    value = REGISTRY.get_sample_value(name)
    assert value is not None
    return value


def test_held_bytes_are_counted_while_they_are_held(uploads):
    before = counted("gateway_waiting_bytes")
    with uploads.lease() as lease:
        for _ in range(50):
            lease.hold(60)
            lease.hold(0)
        lease.hold(MAX)
        assert (uploads.bound.held, counted("gateway_waiting_bytes") - before) == (MAX, MAX)
        lease.grow(-10)
        lease.grow(-1_000)  # more than there is
        assert lease.held == 0
        lease.hold(1)
    assert (uploads.bound.held, counted("gateway_waiting_bytes") - before) == (0, 0)


@pytest.mark.parametrize(
    ("stalled", "newcomer", "evicted"),
    [
        ([(25, 400), (25, 10), (25, 300), (25, 50)], (40, 1_000), [False, True, False, True]),  # as many as necessary
        ([(10, 500), (80, 500)], (20, 500), [False, True]),  # of two equally fast ones the larger
    ],
)
def test_slowest_uploads_are_evicted(uploads, clock, stalled, newcomer, evicted):
    clients = [opened(uploads, clock, nbytes=nbytes, speed=speed)[0] for nbytes, speed in stalled]
    before = counted("gateway_uploads_displaced_total")
    _, lease = opened(uploads, clock, nbytes=newcomer[0], speed=newcomer[1])
    assert lease.held == newcomer[0]
    details = {"limit": "max_bytes_waiting", "value": MAX}
    assert [bool(upload.error and upload.error.details == details) for upload in clients] == evicted
    assert counted("gateway_uploads_displaced_total") == before + sum(evicted)


@pytest.mark.parametrize(
    ("speed", "is_idle", "newcomers_speed"),
    [
        (10_000, True, 10),  # the newcomer is the slowest
        (1, False, 1_000),  # the upload is complete
        (1, True, None),  # the newcomer is a frame of a stream
    ],
)
def test_upload_is_not_evicted(uploads, clock, speed, is_idle, newcomers_speed):
    upload, _ = opened(uploads, clock, nbytes=90, speed=speed, is_idle=is_idle)
    newcomer = Upload(clock, newcomers_speed) if newcomers_speed else None
    with pytest.raises(Overloaded):
        uploads.lease(newcomer and Uploader(newcomer.pace, newcomer.evict), 20)
    assert upload.error is None


def test_response_above_the_limit_is_built_alone():
    buffer = response_buffer(MAX)
    with buffer.lease(amount=60) as large, buffer.lease() as small:
        large.grow(MAX)
        with pytest.raises(Overloaded):
            small.grow(1)


def test_clients_of_a_key_hold_its_bound_together_and_evict_no_other_client(clock):
    pool, key_bound = upload_buffer(MAX), Bound("share", MAX // 2)
    slow, first, second = Upload(clock, 1), pool.lease(key_bound=key_bound), pool.lease(key_bound=key_bound)
    other = pool.lease(Uploader(slow.pace, slow.evict))
    other.hold(10)
    first.hold(20)
    second.hold(MAX // 2 - 20)
    with pytest.raises(Overloaded) as refused:
        second.grow(1)
    assert refused.value.details == {"limit": "share", "value": MAX // 2}
    assert (second.held, key_bound.held, slow.error) == (MAX // 2 - 20, MAX // 2, None)
    second.grow(-1)
    first.grow(1)
    other.hold(MAX - MAX // 2)
    first.release()
    second.release()
    assert (key_bound.held, pool.bound.held) == (0, MAX - MAX // 2)


def pace_of(clock: Clock) -> Pace:
    return Pace(min_bytes_per_second=100, grace_seconds=10, now=clock)


def send(pace: Pace, clock: Clock, nbytes: int, seconds: float) -> None:
    pace.wait()
    clock.seconds += seconds
    pace.receive(nbytes)


@pytest.mark.parametrize(("nbytes", "seconds", "left"), [(100, 1_000, 10), (50, 20, 0)])
def test_client_below_the_minimum_speed_uses_up_its_grace_period(clock, nbytes, seconds, left):
    pace = pace_of(clock)
    for _ in range(seconds):
        send(pace, clock, nbytes, 1)
    assert pace.wait() == pytest.approx(left)


def test_stalled_client_is_soon_slower_than_a_steady_slow_one(clock):
    greedy, steady = pace_of(clock), pace_of(clock)
    send(greedy, clock, 20 * 2**20, 1)
    greedy.wait()
    for _ in range(600):
        send(steady, clock, 1_000, 0.1)
    assert greedy.bytes_per_second < steady.bytes_per_second / 10
