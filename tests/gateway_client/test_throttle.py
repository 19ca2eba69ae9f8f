"""How many requests are out at once."""

from gateway_client.throttle import Throttle


def test_a_refusal_halves_and_successes_bring_it_back():
    throttle = Throttle(8)
    throttle.refused()
    assert throttle.limit == 4
    for _ in range(100):
        throttle.succeeded()
    assert throttle.limit == 8


def test_one_request_is_always_out():
    throttle = Throttle(4)
    for _ in range(10):
        throttle.refused()
    assert throttle.limit == 1
