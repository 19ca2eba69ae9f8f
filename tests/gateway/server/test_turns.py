"""Turns: a little work in each iteration, round-robin by client, and a backlog that delays no one."""

import asyncio
import time

from gateway.server import connections as module
from gateway.server.connections import PARSE_SECONDS, Turns


class Participant:
    def __init__(self, client: str = "") -> None:
        self.client = client


async def iterate(times: int = 1) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


async def test_work_of_an_iteration_ends_with_its_time_and_alternates_between_clients():
    turns, done = Turns(), []

    def work(client: str) -> None:
        done.append(client)
        time.sleep(PARSE_SECONDS)

    assert turns.run(lambda: work("-"))
    assert not turns.run(lambda: work("more than fits"))
    for client in ("a", "a", "a", "b", "b", "c"):
        turns.enqueue(Participant(client), lambda client=client: work(client))
    assert not turns.run(lambda: work("before the ones that wait"))
    await iterate()
    assert "".join(done) == "-a"
    await iterate(5)
    assert "".join(done) == "-abcaba"


async def test_backlog_takes_its_share_of_the_time_and_new_work_does_not_wait():
    turns, participant = Turns(), Participant("flood")
    spent = [0]

    def work() -> None:
        spent[0] += 1
        time.sleep(0.002)
        turns.enqueue(participant, work, backlog=True)

    turns.enqueue(participant, work, backlog=True)
    ends = time.monotonic() + 0.5
    while time.monotonic() < ends:
        assert turns.run(lambda: None), "the backlog is not in the way"
        await asyncio.sleep(0)
    assert 3 <= spent[0] <= 0.5 / 0.002 / module.BACKLOG_SHARE + 1


def test_client_that_is_refused_often_waits(monkeypatch):
    """Up to a limit; the memory for all clients is bounded."""
    monkeypatch.setattr(module, "MAX_REFUSED", 2)
    turns = Turns()
    for _ in range(int(module.FREE_SECONDS / module.REFUSAL_SECONDS)):
        turns.refuse("rarely")
    assert turns.wait_seconds("rarely") == 0
    for _ in range(1_000):
        turns.refuse("often")
    assert 0.5 < turns.wait_seconds("often") <= module.MOST_SECONDS
    turns.refuse("rarely")
    turns.refuse("another")
    assert turns.wait_seconds("often") == 0
