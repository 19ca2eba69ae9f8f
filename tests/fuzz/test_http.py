"""Damaged requests and streams."""

import itertools
import os

import pytest

from tests.fuzz import http
from tests.fuzz.service import BATCH, run_cases


@pytest.mark.slow
def test_every_error_of_a_client_of_streams_is_answered():
    """No status 500, no close code of a fault, no close without a code, no traceback, and no long pause."""
    cases = list(http.streams())
    given = itertools.cycle(cases)
    # A client that sends nothing within this limit is closed without an answer: any of them on a busy machine.
    patient = {"upload_idle_timeout_seconds": 60.0}
    report = run_cases(lambda _: next(given), http.exchange, requests=len(cases), at_once=BATCH, **patient)
    assert report.faults == []
    assert "closed" not in report.answers


@pytest.mark.parametrize(
    "requests", [pytest.param(200, marks=pytest.mark.slow), pytest.param(1_000, marks=pytest.mark.long)]
)
def test_damaged_requests_cost_little_and_leave_the_gateway_alive(requests):
    report = http.run(requests, seed=int(os.environ.get("FUZZ_SEED", "20261122")))
    assert report.faults == []
    assert len(report.answers) > 5
