"""Statistics of a request: overlapping time counts once, and every image is counted."""

import time

import pytest

from gateway.errors import EmptyFile
from gateway.inference.request_stats import RequestStats, Stage


@pytest.fixture
def clock(monkeypatch):
    """Sets time.perf_counter."""
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def advance(seconds: float) -> None:
        now[0] += seconds

    return advance


def test_time_in_a_stage_adds_up(clock):
    stage = Stage()
    for seconds in (1, 2):
        with stage:
            clock(seconds)
        clock(10)
    assert stage.seconds == 3
    assert (stage.began, stage.ended) == (100, 113)


def test_concurrent_images_count_a_stage_once(clock):
    stage = Stage()
    with stage:
        clock(1)
        with stage:
            clock(2)
            with stage:
                clock(4)
        clock(8)
    assert stage.seconds == 15


def test_running_stage_counts_up_to_now(clock):
    stage = Stage()
    with stage:
        clock(5)
        assert (stage.seconds, stage.ended) == (5, 105)
        clock(1)
    assert stage.seconds == 6


def test_failed_stage_ends(clock):
    stage = Stage()

    def fail() -> None:
        with stage:
            clock(1)
            raise EmptyFile

    with pytest.raises(EmptyFile):
        fail()
    clock(1)
    assert stage.seconds == 1


def test_stages_are_in_order_of_first_entry():
    stats = RequestStats()
    for name in ("read", "infer", "read"):
        with stats.stages[name]:
            pass
    assert list(stats.stages) == ["read", "infer"]
