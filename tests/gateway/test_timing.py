"""Time: long tasks alternate, and short ones run between their time slices."""

import asyncio

import pytest

from gateway import timing
from gateway.timing import TimeSlice


@pytest.fixture(autouse=True)
def _turns_are_over_at_once(monkeypatch):
    monkeypatch.setattr(timing, "TIME_SLICE_SECONDS", 0.0)


async def work(told: list[str], name: str, steps: int) -> None:
    turn = TimeSlice()
    for _ in range(steps):
        told.append(name)
        await turn.pause_if_over()


async def test_short_tasks_run_between_time_slices():
    told: list[str] = []

    async def quick() -> None:
        for _ in range(200):
            told.append(".")
            await asyncio.sleep(0)

    await asyncio.gather(quick(), *(work(told, name, 5) for name in "abcdefgh"))
    first_turns, rest = "".join(told)[:9], "".join(told)[9:]
    assert set(first_turns) == set(".abcdefgh")  # none had worked yet
    assert max(map(len, rest.split("."))) <= 1


async def test_late_event_loop_ends_short_time_slices(monkeypatch):
    monkeypatch.setattr(timing, "TIME_SLICE_SECONDS", 60.0)
    monkeypatch.setattr(timing, "LATE_SECONDS", 0.0)
    told: list[str] = []

    timing.beat()
    await asyncio.gather(*(work(told, name, 3) for name in "abc"))
    timing.rest()
    await asyncio.gather(*(work(told, name, 3) for name in "def"))
    assert "".join(told) == "abc" * 3 + "dddeeefff"
