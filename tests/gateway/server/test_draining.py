"""The time that is left after the first signal to stop."""

from gateway.server.draining import Draining


def test_time_is_left_from_the_first_signal_on():
    draining = Draining()
    assert draining.left_seconds(60) == 60
    draining.begin()
    first = draining.left_seconds(60)
    assert 0 < first <= 60
    draining.begin()
    assert draining.left_seconds(60) <= first
    assert draining.left_seconds(0) == 0
