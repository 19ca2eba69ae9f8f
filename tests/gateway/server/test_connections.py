"""The connections of a process: which of them have a slot, and which one ends for another."""

from collections.abc import Iterator

import pytest
from prometheus_client import REGISTRY

from gateway import metrics
from gateway.errors import Overloaded
from gateway.limits.pools import IDLE_SECONDS
from gateway.server.connections import Connections, Wait
from tests.doubles.clock import Clock

MOST, RESERVED = 3, 2


class Connection:
    """A connection as `Connections` sees it."""

    client = ""

    def __init__(self, bytes_per_second: float = 0.0) -> None:
        self.transport = self.pace = self
        self.bytes_per_second = bytes_per_second
        self.is_slow = False
        self.aborted = False
        self.displaced: Overloaded | None = None

    def abort(self) -> None:
        self.aborted = True

    def displace(self, error: Overloaded) -> None:
        self.displaced = error


@pytest.fixture
def clock() -> Clock:
    return Clock(100.0)


@pytest.fixture
def connections(clock) -> Iterator[Connections]:
    connections = Connections(MOST, clock, reserved=RESERVED)
    yield connections
    metrics.CONNECTIONS.dec(len(connections))


def closed(reason: str) -> float:
    return REGISTRY.get_sample_value("gateway_connections_closed_total", {"reason": reason}) or 0.0


def new(connections: Connections) -> Connection:
    connection = Connection()
    connections.add(connection)
    connections.wait(connection, Wait.FIRST)
    return connection


def busy(connections: Connections) -> Connection:
    connection = new(connections)
    assert connections.start(connection)
    connections.wait(connection, None)
    return connection


def answered(connections: Connections) -> Connection:
    connection = busy(connections)
    connections.wait(connection, Wait.NEXT)
    return connection


def uploading(connections: Connections, bytes_per_second: float) -> Connection:
    connection = busy(connections)
    connection.bytes_per_second = bytes_per_second
    connections.wait(connection, Wait.MORE)
    return connection


def test_newcomer_beyond_the_limit_is_refused_if_all_are_at_work(connections):
    members = [busy(connections) for _ in range(MOST)]
    newcomer = new(connections)
    assert connections.reserves(newcomer)
    assert not connections.start(newcomer)
    assert connections.reserves(newcomer), "it reads why it was refused"
    connections.remove(members[0])
    assert connections.start(newcomer)
    assert len(connections) == MOST
    probe = new(connections)
    assert connections.start(probe, health=True), "it needs no slot"
    assert (connections.reserves(probe), len(connections)) == (True, MOST)


def test_full_reserve_closes_its_oldest(connections):
    for _ in range(MOST):
        busy(connections)
    oldest, newer = (new(connections) for _ in range(RESERVED))
    newest = new(connections)
    assert (oldest.aborted, newer.aborted, newest.aborted) == (True, False, False)
    assert not connections.start(oldest, health=True)


def test_idle_without_a_request_goes_first(connections):
    first, older, newer = idle = answered(connections), new(connections), new(connections)
    before, newcomer = closed("idle"), new(connections)
    assert not any(each.displaced for each in idle), "the newcomer has sent no request yet"
    assert connections.start(newcomer)
    assert closed("idle") == before + 1
    assert [bool(each.displaced) for each in (first, older, newer)] == [False, True, False]


def test_longest_idle_goes_next(connections):
    older, newer = answered(connections), answered(connections)
    connections.wait(older, None)
    connections.wait(older, Wait.NEXT)  # it has had another request meanwhile
    busy(connections)
    busy(connections)
    assert (older.displaced, newer.displaced is None) == (None, False)


def test_connection_with_a_recent_response_is_kept(connections, clock):
    """Its client continues, unlike one whose upload is slower than the minimum."""
    recent, upload, slow = answered(connections), uploading(connections, 2.0), uploading(connections, 1.0)
    slow.is_slow = True
    busy(connections)
    assert (recent.displaced, upload.displaced, bool(slow.displaced)) == (None, None, True)
    clock.seconds += IDLE_SECONDS + 0.01
    upload.is_slow = True
    busy(connections)
    assert (bool(recent.displaced), upload.displaced) == (True, None)


def test_stalled_reader_goes_before_an_upload(connections, clock):
    upload, reader = uploading(connections, 0.0), busy(connections)
    connections.wait(reader, Wait.READING)
    busy(connections)
    clock.seconds += IDLE_SECONDS + 0.01
    busy(connections)
    assert (reader.aborted, upload.displaced) == (True, None)


def test_slowest_upload_goes(connections):
    uploads = [uploading(connections, speed) for speed in (3.0, 1.0, 2.0)]
    before = closed("slow")
    newcomer = busy(connections)
    assert closed("slow") == before + 1
    assert [bool(each.displaced) for each in uploads] == [False, True, False]
    assert uploads[1].displaced.details == {"limit": "max_connections", "value": MOST}
    connections.wait(uploads[2], None)  # its body is complete
    busy(connections)
    assert [bool(each.displaced) for each in uploads] == [True, True, False]
    assert newcomer.displaced is None
