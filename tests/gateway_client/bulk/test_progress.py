"""The progress line of a run."""

from gateway_client import ImageError, Result
from gateway_client.bulk.meter import Meter
from tests.doubles.clock import Clock


def count(meter: Meter, clock: Clock, number: int, seconds_each: float, error: ImageError | None = None) -> None:
    """Let images be done, one after another."""
    for _ in range(number):
        clock.seconds += seconds_each
        meter.count(Result(0, "a.png", None, error=error))


def test_line_has_the_rate_and_the_time_left():
    clock = Clock(100.0)
    meter = Meter(clock=clock)
    meter.before = 10
    assert meter.summary() == "10, 0.0/s"
    meter.total = 1_210
    assert meter.summary() == "10 of 1,210, 0.0/s"
    count(meter, clock, 60, 1.0)
    assert meter.summary() == "70 of 1,210, 1.0/s, 19 min left"
    count(meter, clock, 1, 0.0, ImageError("The file is empty.", code="empty_file"))
    meter.total = 70  # files are gone since they were counted
    assert meter.summary().endswith(", 1 failed, 0 s left")
    assert meter.seconds == 60


def test_line_of_a_pause_has_its_reason_and_no_time_left():
    clock = Clock()
    meter = Meter(failed_before={"empty_file": 1}, clock=clock)
    meter.before = 5
    meter.total = 12
    count(meter, clock, 1, 1.0)
    meter.waiting = "More images are in flight than the limits allow."
    assert meter.summary() == "6 of 12, 1.0/s, 1 failed, waiting: More images are in flight than the limits allow."
    count(meter, clock, 1, 1.0)
    assert meter.summary() == "7 of 12, 1.0/s, 1 failed, 5 s left"
