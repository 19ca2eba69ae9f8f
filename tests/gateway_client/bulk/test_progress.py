"""The progress line of a run."""

from gateway_client import ImageError, Result
from gateway_client.bulk.meter import Meter
from tests.doubles.clock import Clock


def test_line_has_the_count_the_rate_and_the_reason_of_a_pause():
    clock = Clock(100.0)
    meter = Meter(failed_before={"empty_file": 1}, clock=clock)
    meter.before = 10
    assert meter.summary() == "10, 0.0/s, 1 failed"
    clock.seconds += 60
    for _ in range(60):
        meter.count(Result(0, "a.png", None))
    meter.waiting = "More images are in flight than the limits allow."
    assert meter.summary() == "70, 1.0/s, 1 failed, waiting: More images are in flight than the limits allow."
    meter.count(Result(0, "a.png", None, error=ImageError("The file is empty.", code="empty_file")))
    assert (meter.summary(), meter.speed()) == ("71, 1.0/s, 2 failed", "61 images in 60 s, 1.0/s")
