"""Limits the connections of a process, displaces one for another client, and parses their bytes in turns."""

import asyncio
import resource
import time
from collections.abc import Callable, Hashable
from enum import Enum, auto
from itertools import islice
from typing import Protocol

import structlog

from gateway import metrics
from gateway.errors import Overloaded
from gateway.limits.bounds import Bound
from gateway.limits.pools import IDLE_SECONDS, Pace

OWN_FILES = 128
"""Files that the process opens besides its connections: decoders, connections to Triton servers, logs."""

log = structlog.get_logger("gateway")

CONNECTIONS = "connections"
"""The key of the Connections in the lifespan state."""

PARSE_SECONDS = 0.0005
"""Time of one iteration of the event loop in which connections parse."""
BACKLOG_SHARE, BACKLOG_MOST = 4, 4
"""Work that did not end in its turn gets 1/BACKLOG_SHARE of the time, in at most BACKLOG_MOST concurrent pieces."""
LEAST_PAUSE_SECONDS = 0.001
"""Time between two rounds of the backlog. The loop's timers count milliseconds."""
REFUSAL_SECONDS, FREE_SECONDS, MOST_SECONDS = 0.01, 0.2, 1.0
"""The wait that each refusal adds for its client, the part of the wait that is free, and its maximum: a client that is
refused more than 100 times a second waits before its next connection is read."""
MAX_REFUSED = 1_024
"""Clients whose refusals are kept."""

Work = Callable[[], None]


class Member(Protocol):
    """The interface of a connection for `Connections`."""

    transport: asyncio.Transport
    pace: Pace

    @property
    def client(self) -> Hashable:
        """Turns alternate between clients."""

    def displace(self, error: Overloaded) -> None:
        """End the connection, with this error where a response is due."""


Queue = dict[Hashable, dict[Member, Work]]
"""Waiting work, by client; the first client is the next one."""


class Turns:
    """Parses in each iteration of the event loop for PARSE_SECONDS, after which no more connections begin to parse.

    Work that did not end in its turn is enqueued again as backlog, which gets 1/BACKLOG_SHARE of the time. So a client
    that sends a lot of costly data does not delay others, not even from its own address. Turns alternate between
    clients, and between the connections of a client.
    """

    def __init__(self) -> None:
        self._spent_seconds = 0.0  # in this iteration
        self._ticks = False
        """Whether `_next` is due in the next iteration."""
        self._new: Queue = {}
        self._backlog: Queue = {}
        self._timer: asyncio.TimerHandle | None = None
        """The next round of the backlog."""
        self._refused_until: dict[Hashable, float] = {}

    def run(self, work: Work, *, has_turn: bool = False) -> bool:
        """Run some work now and return True; False without running it if this iteration has no time left for it.

        With `has_turn` it is run in any case.
        """
        if not has_turn and (self._new or self._spent_seconds >= PARSE_SECONDS):
            return False
        if not self._ticks:
            self._tick()
        began = time.perf_counter()
        try:
            work()
        finally:
            self._spent_seconds += time.perf_counter() - began
        return True

    def spend(self, seconds: float) -> None:
        """Take time of this iteration for work that follows the parsing in the next one."""
        self._spent_seconds += seconds

    def enqueue(self, connection: Member, work: Work, *, backlog: bool = False) -> None:
        """Run some work in one of the next iterations: one piece for each connection."""
        (self._backlog if backlog else self._new).setdefault(connection.client, {})[connection] = work
        if not backlog:
            if not self._ticks:
                self._tick()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LEAST_PAUSE_SECONDS, self._run_backlog)

    def refuse(self, client: Hashable) -> None:
        """Count a refusal of a client's data."""
        now = time.monotonic()
        until = max(self._refused_until.pop(client, now), now) + REFUSAL_SECONDS
        self._refused_until[client] = min(until, now + MOST_SECONDS)
        if len(self._refused_until) > MAX_REFUSED:
            del self._refused_until[next(iter(self._refused_until))]

    def wait_seconds(self, client: Hashable) -> float:
        """How long the client has to wait for its refusals."""
        return max(0.0, self._refused_until.get(client, 0.0) - time.monotonic() - FREE_SECONDS)

    def _tick(self) -> None:
        """Begin the next iteration as soon as this one has ended."""
        self._ticks = True
        asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        """Begin an iteration, with the new work that waits."""
        self._ticks, self._spent_seconds = False, 0.0
        if self._new:
            self._tick()
        while self._new and self._spent_seconds < PARSE_SECONDS:
            self.run(_take(self._new), has_turn=True)

    def _run_backlog(self) -> None:
        """Run a round of the backlog, and set the timer of the next one."""
        began, spent = time.perf_counter(), 0.0
        try:
            for _ in range(BACKLOG_MOST):
                if self._backlog and spent < PARSE_SECONDS:
                    _take(self._backlog)()
                    spent = time.perf_counter() - began
        finally:
            pause = max(LEAST_PAUSE_SECONDS, (BACKLOG_SHARE - 1) * spent)
            self._timer = asyncio.get_running_loop().call_later(pause, self._run_backlog) if self._backlog else None


def _take(queue: Queue) -> Work:
    """Remove and return the next work; its client is the last one then."""
    client = next(iter(queue))
    works = queue.pop(client)
    work = works.pop(next(iter(works)))
    if works:
        queue[client] = works
    return work


RESERVED = 64
"""Connections beyond the limit: newcomers until their request is known, requests for the service's health, and refused
clients that read why."""
RESERVE_SECONDS = 2.0
"""How long a newcomer beyond the limit may take to send the headers of its request."""
COMPARED = 64
"""A newcomer displaces one of this many connections, whose clients have been silent for longest."""


class Wait(Enum):
    """What a connection waits for its client to send or to do."""

    FIRST = auto()
    """The first request."""
    NEXT = auto()
    """Another request."""
    MORE = auto()
    """More of an upload, or a stream's next message."""
    READING = auto()
    """The client does not read its response as fast as it comes."""


class Connections:
    """The connections of one process: at most `most`, and `reserved` more for newcomers and health requests.

    A newcomer beyond the limit is in the reserve until its request is known. A request for the service's health is
    served there. Any other request displaces the first connection of this list: the oldest without a request; an idle
    one, whose last response was more than IDLE_SECONDS ago; one whose client does not read; the slowest upload or
    stream, if it is slower than `min_upload_bytes_per_second`; the longest idle; the slowest. If all are at work, the
    request is refused.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic, *, reserved: int = RESERVED) -> None:
        self._bound = Bound("max_connections", most, metrics.CONNECTIONS, metrics.CONNECTIONS_LIMIT)
        self._reserved = reserved
        self._clock = clock
        self._members: set[Member] = set()
        self._reserve: dict[Member, None] = {}  # in the order in which they came
        self._waiting: dict[Member, tuple[Wait, float]] = {}
        """Members that wait for their clients: what for and since when, the longest first."""
        self.parsing = Turns()

    def __len__(self) -> int:
        return len(self._members)

    def add(self, connection: Member) -> None:
        """Count a new connection: as a member while there is a slot, else in the reserve, whose oldest may go."""
        if self._bound.free > 0:
            self._join(connection)
        else:
            self._enter_reserve(connection)

    def start(self, connection: Member, *, health: bool = False) -> bool:
        """Begin a request: its connection has a slot, gets one, or needs none for `health`; False if it is refused.

        The connection of a request in the reserve is closed after the response.
        """
        if connection in self._members:
            return True
        if connection not in self._reserve:
            return False  # displaced meanwhile
        del self._reserve[connection]
        if health:
            self._reserve[connection] = None  # behind the ones that have sent no request yet
            return True
        if self._bound.free < 1 and not self._displace():
            metrics.CONNECTIONS_CLOSED.labels("refused").inc()
            self._reserve[connection] = None
            return False
        self._join(connection)
        return True

    def full(self) -> Overloaded:
        """Why a request is refused."""
        return self._bound.full("There are {} connections, the maximum; try again later.")

    def reserves(self, connection: Member) -> bool:
        """Whether a connection is in the reserve."""
        return connection in self._reserve

    def wait(self, connection: Member, what: Wait | None) -> None:
        """A connection waits for its client from now on; with None it does not."""
        self._waiting.pop(connection, None)
        if what is not None and connection in self._members:
            self._waiting[connection] = what, self._clock()

    def release(self, connection: Member) -> None:
        """Give back the slot of a connection whose client was refused and only reads the error."""
        if connection in self._members:
            self._leave(connection)
            self._enter_reserve(connection)

    def remove(self, connection: Member) -> None:
        """Stop counting a connection."""
        self._reserve.pop(connection, None)
        if connection in self._members:
            self._leave(connection)

    def _join(self, connection: Member) -> None:
        self._members.add(connection)
        self._bound.add(1)

    def _leave(self, connection: Member) -> None:
        self._members.discard(connection)
        self._waiting.pop(connection, None)
        self._bound.add(-1)

    def _enter_reserve(self, connection: Member) -> None:
        if len(self._reserve) >= self._reserved:
            oldest = next(iter(self._reserve))
            del self._reserve[oldest]
            metrics.CONNECTIONS_CLOSED.labels("refused").inc()
            oldest.transport.abort()
        self._reserve[connection] = None

    def _displace(self) -> bool:
        """End the least useful of the connections whose clients have been silent for longest, if there is one."""
        connection = min(islice(self._waiting, COMPARED), key=self._usefulness, default=None)
        if connection is None:
            return False
        what, since = self._waiting[connection]
        if what is not Wait.READING:
            self._end(connection, "slow" if what is Wait.MORE else "idle")
            return True
        if self._clock() - since < IDLE_SECONDS:
            return False
        metrics.CONNECTIONS_CLOSED.labels("unread").inc()
        connection.transport.abort()
        self._leave(connection)
        return True

    def _usefulness(self, connection: Member) -> tuple[int, float]:
        """The place in the list of Connections; of two uploads, the slower one comes first."""
        what, since = self._waiting[connection]
        idle = self._clock() - since >= IDLE_SECONDS
        match what:
            case Wait.FIRST:
                return 0, 0
            case Wait.NEXT:
                return 1 if idle else 4, 0
            case Wait.READING:
                return 2 if idle else 6, 0
            case Wait.MORE:
                return 3 if connection.pace.is_slow else 5, connection.pace.bytes_per_second

    def _end(self, connection: Member, reason: str) -> None:
        metrics.CONNECTIONS_CLOSED.labels(reason).inc()
        connection.displace(
            self._bound.full("There are {} connections, the maximum, and this one was the slowest; try again later.")
        )
        if connection in self._members:  # otherwise it is in the reserve, to read the error
            self._leave(connection)


def affordable_connections(most: int) -> int:
    """`most` connections, or fewer if the process may not open that many files; raises its soft limit if possible.

    Without a free file, an accepted connection is reset, and everything else that opens a file fails.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = most + RESERVED + OWN_FILES
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return most
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if allowed > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    affordable = min(most, max(1, allowed - RESERVED - OWN_FILES))
    if affordable < most:
        log.warning(
            "connections_limited",
            max_connections=affordable,
            configured=most,
            open_files=allowed,
            advice=f"raise the limit of open files to {needed} (ulimit -n)",
        )
    return affordable
