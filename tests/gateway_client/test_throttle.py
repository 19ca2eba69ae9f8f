"""The number of concurrent requests."""

from gateway_client.sending import Throttle


def test_refusal_halves_and_successes_restore_concurrency():
    throttle = Throttle(8)
    throttle.refused()
    assert throttle.limit == 4
    for _ in range(100):
        throttle.succeeded()
    assert throttle.limit == 8


def test_concurrency_never_falls_below_one():
    throttle = Throttle(4)
    for _ in range(10):
        throttle.refused()
    assert throttle.limit == 1
