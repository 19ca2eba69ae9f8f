"""Damaged requests, streams and files, by the fuzzers: some of each, and what the fuzzers themselves promise."""

import itertools

import pytest

from tests.fuzz import campaign, streams
from tests.fuzz.http import run
from tests.fuzz.service import BATCH, run_cases


@pytest.mark.slow
def test_damaged_requests_cost_little_and_leave_the_gateway_alive():
    report = run(requests=100, seed=20_261_122)
    assert report.faults == []
    assert report.requests == 100
    assert len(report.answers) > 3


@pytest.mark.slow
def test_every_error_of_a_client_of_streams_is_answered():
    """No 5xx but 503, no close code of a fault, no close without a code, no traceback, and no long pause."""
    cases = list(streams.every_case())
    given = itertools.cycle(cases)
    # A client that sends nothing within this limit is closed without an answer: any of them on a busy machine.
    patient = {"upload_idle_timeout_seconds": 60.0}
    report = run_cases(lambda _: next(given), streams.exchange, requests=len(cases), at_once=BATCH, **patient)
    assert report.faults == []
    assert report.answers.keys().isdisjoint({"closed", "closed without a code", "close code 1005"})


@pytest.mark.parametrize(
    "requests", [pytest.param(100, marks=pytest.mark.slow), pytest.param(1_000, marks=pytest.mark.long)]
)
def test_damaged_streams_are_answered_or_closed(requests):
    """No 5xx, no close code 1011, no traceback, and the process goes on."""
    report = streams.run(requests=requests, seed=20_261_123)
    assert report.faults == []
    assert len(report.answers) > 5


@pytest.mark.parametrize(
    ("received", "outcome"),
    [
        (b"", "closed"),
        (b"HTTP/1.1 422 X\r\n\r\n", "422"),
        (b"HTTP/1.1 500 X\r\n\r\n", "fault: 500"),
        (b"\x8a\x00HTTP/1.1 422 X\r\n\r\n", r"fault: no HTTP: b'\x8a\x00HTTP/1.1 422 X\r\n\r\n'"),
        (b"HTTP/1.1 101 X\r\n\r\n\x88\x02\x03\xe8", "close code 1000"),
        (b"HTTP/1.1 101 X\r\n\r\n\x88\x02\x03\xf3", "fault: close code 1011"),
        (b"HTTP/1.1 101 X\r\n\r\n\x81\x02{}", "closed without a code"),
        (b"HTTP/1.1 101 X\r\n\r\n\x81\x02{[", "fault: no JSON: b'{['"),
        (b"HTTP/1.1 101 X\r\n\r\n\xc1\x00", r"fault: no frame: b'\xc1\x00'"),
    ],
)
def test_outcome_of_a_response(received, outcome):
    assert streams.outcome(received) == outcome


@pytest.mark.long
def test_ten_thousand_damaged_files_leave_the_process_alive_and_small():
    report = campaign.run(files=10_000, seed=20_240_601)
    assert report.faults == []
    assert report.files >= 10_000
    assert report.resident_bytes - report.resident_bytes_at_start < 50 * 2**20


def test_child_that_dies_is_a_fault():
    child = campaign.Child()
    child._process.kill()
    assert "died" in child.ask(b"x")
    child.close()
