"""The connections of a process: who has a place, who goes, and who comes in when."""

import asyncio

import pytest
from prometheus_client import REGISTRY

from gateway.server.connections import NEW_IN_A_TURN, STALLED_SECONDS, Connections


class Connection:
    """What `Connections` sees of one."""

    def __init__(self) -> None:
        self.transport = self
        self.closed = self.aborted = False

    def abort(self) -> None:
        self.aborted = True

    def close(self) -> None:
        self.closed = True


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def connections(clock) -> Connections:
    return Connections(3, clock)


def add(connections: Connections, *, busy: bool = False, answered: bool = False) -> Connection:
    connection = Connection()
    assert connections.add(connection)
    if busy or answered:
        connections.busy(connection)
    if answered:
        connections.idle(connection)
    return connection


def test_there_are_as_many_as_the_limit_says_and_no_more(connections):
    busy = [add(connections, busy=True) for _ in range(3)]
    assert not connections.add(Connection())
    connections.remove(busy[0])
    assert connections.add(Connection())
    assert len(connections) == 3


def test_the_oldest_without_a_request_makes_room_before_any_that_was_answered(connections):
    answered, older, newer = add(connections, answered=True), add(connections), add(connections)
    add(connections)
    assert (answered.closed, older.closed, newer.closed) == (False, True, False)


def test_else_the_one_that_was_answered_longest_ago_makes_room(connections):
    older, newer = add(connections, answered=True), add(connections, answered=True)
    connections.busy(older)
    connections.idle(older)  # it has asked again meanwhile
    add(connections, busy=True)
    add(connections, busy=True)
    assert (older.closed, newer.closed) == (False, True)


def test_who_has_not_read_for_longest_is_cut_off_and_nobody_who_has_read_of_late(connections, clock):
    first, second, third = (add(connections, busy=True) for _ in range(3))
    for connection in (first, second):
        connections.stalls(connection)
    clock.now += STALLED_SECONDS - 0.01
    assert not connections.close_slowest_reader()
    clock.now += 0.02
    connections.reads_on(first)
    connections.stalls(first)
    connections.stalls(second)  # as it did before
    assert connections.close_slowest_reader()
    assert not connections.close_slowest_reader()
    assert (first.aborted, second.aborted, third.aborted) == (False, True, False)


def test_one_that_is_gone_is_not_cut_off(connections, clock):
    gone = add(connections, busy=True)
    connections.stalls(gone)
    connections.remove(gone)
    connections.stalls(gone)
    clock.now += 100
    assert not connections.close_slowest_reader()


def test_one_that_is_removed_twice_counts_once(connections):
    def counted() -> float:
        return REGISTRY.get_sample_value("gateway_connections")

    before = counted()
    one, other = add(connections), add(connections)
    for connection in (one, one, other):
        connections.remove(connection)
    assert (len(connections), counted()) == (0, before)


def test_a_crowd_comes_in_a_few_in_each_turn_of_the_loop(connections):
    async def scenario() -> None:
        entered: list[int] = []
        at_once = [number for number in range(20) if connections.enter(lambda number=number: entered.append(number))]
        assert at_once == list(range(NEW_IN_A_TURN))
        turns = 0
        while len(entered) < 20 - NEW_IN_A_TURN:
            before = len(entered)
            await asyncio.sleep(0)
            turns += 1
            assert len(entered) - before <= NEW_IN_A_TURN
        assert entered == list(range(NEW_IN_A_TURN, 20)), "in the order in which they came"
        for _ in range(3):
            await asyncio.sleep(0)
        assert connections.enter(lambda: None), "when the crowd is in, one comes in at once"

    asyncio.run(scenario())
