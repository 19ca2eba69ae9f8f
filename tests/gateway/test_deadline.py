from types import SimpleNamespace

from gateway.deadline import Deadline


def test_deadline_has_passed_once_it_is_reached(monkeypatch):
    clock = SimpleNamespace(now=100.0, monotonic=lambda: clock.now)
    monkeypatch.setattr("gateway.deadline.time", clock)
    deadline = Deadline.after(2)
    for now, left_seconds, passed in ((100.0, 2.0, False), (101.5, 0.5, False), (102.0, 0.0, True), (103.0, 0.0, True)):
        clock.now = now
        assert (deadline.left_seconds, deadline.passed) == (left_seconds, passed)
