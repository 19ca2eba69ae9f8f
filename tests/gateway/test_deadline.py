from types import SimpleNamespace

from gateway.deadline import Deadline
from tests.doubles.clock import Clock


def test_deadline_has_passed_once_it_is_reached(monkeypatch):
    clock = Clock(100.0)
    monkeypatch.setattr("gateway.deadline.time", SimpleNamespace(monotonic=clock))
    deadline = Deadline.after(2)
    for now, left_seconds, passed in ((100.0, 2.0, False), (101.5, 0.5, False), (102.0, 0.0, True), (103.0, 0.0, True)):
        clock.seconds = now
        assert (deadline.left_seconds, deadline.passed) == (left_seconds, passed)
