"""The speed of an upload: its grace period, and its recent speed."""

import pytest

from gateway.limits.pace import Pace


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def pace_of(clock: Clock) -> Pace:
    return Pace(min_bytes_per_second=100, grace_seconds=10, now=clock)


def send(pace: Pace, clock: Clock, nbytes: int, seconds: float) -> None:
    pace.wait()
    clock.seconds += seconds
    pace.receive(nbytes)


def test_client_at_the_minimum_speed_keeps_its_grace_period():
    pace, clock = pace_of(clock := Clock()), clock
    for _ in range(1_000):
        send(pace, clock, 100, 1)
    assert pace.spare_seconds == pytest.approx(10)


def test_slower_client_uses_up_its_grace_period():
    pace, clock = pace_of(clock := Clock()), clock
    for _ in range(20):
        send(pace, clock, 50, 1)
    assert pace.spare_seconds == pytest.approx(0)


def test_pause_uses_up_grace_that_speed_restores():
    pace, clock = pace_of(clock := Clock()), clock
    pace.wait()
    clock.seconds += 9
    assert pace.spare_seconds == pytest.approx(1)
    pace.receive(400)
    assert pace.spare_seconds == pytest.approx(5)
    send(pace, clock, 10**6, 0.1)
    assert pace.spare_seconds == pytest.approx(10), "nothing is saved up beyond the grace"


def test_time_without_reading_is_not_charged_to_the_client():
    pace, clock = pace_of(clock := Clock()), clock
    send(pace, clock, 1_000, 1)
    before = pace.bytes_per_second
    clock.seconds += 1_000
    assert not pace.is_idle
    assert (pace.spare_seconds, pace.bytes_per_second) == (10, before)


@pytest.mark.parametrize("seconds", [1, 3, 30])
def test_steady_speed_is_known_from_the_first_second(seconds):
    pace, clock = pace_of(clock := Clock()), clock
    for _ in range(seconds * 10):
        send(pace, clock, 100, 0.1)
    assert pace.bytes_per_second == pytest.approx(1_000, rel=0.05)


def test_stalled_client_is_soon_slower_than_a_steady_slow_one():
    greedy, steady, clock = pace_of(clock := Clock()), pace_of(clock), clock
    send(greedy, clock, 20 * 2**20, 1)
    greedy.wait()
    for _ in range(600):
        send(steady, clock, 1_000, 0.1)
    assert greedy.bytes_per_second < steady.bytes_per_second / 10


def test_new_client_is_not_slow():
    new, steady, clock = pace_of(clock := Clock()), pace_of(clock), clock
    for _ in range(100):
        send(steady, clock, 10_000, 0.1)
    send(new, clock, 65_536, 0)
    assert new.bytes_per_second > steady.bytes_per_second
