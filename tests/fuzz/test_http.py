import random

import pytest

from bench.attack.parsers import http_attacks
from tests.fuzz.http import damaged, run


@pytest.mark.slow
def test_two_hundred_damaged_requests_cost_little_and_leave_the_gateway_alive():
    report = run(requests=200, seed=20_261_122)
    assert report.faults == []
    assert report.requests == 200
    assert len(report.answers) > 3


def test_the_same_seed_damages_a_request_the_same_way():
    seeds = list(http_attacks())
    assert damaged(random.Random("1 2"), seeds) == damaged(random.Random("1 2"), seeds)
