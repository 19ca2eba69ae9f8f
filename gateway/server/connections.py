"""Limits the connections of a process, displaces one for another client, and schedules their work in turns."""

import asyncio
import math
import resource
import time
from collections.abc import Callable, Hashable
from functools import partial
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
    """Runs at most `most` pieces of work in one iteration of the event loop, and begins none after `seconds` of it.

    Work that did not end in its turn is enqueued again as backlog, which gets 1/BACKLOG_SHARE of the time. So a client
    that sends a lot of costly data does not delay others, not even from its own address. Turns alternate between
    clients, and between the connections of a client.
    """

    def __init__(self, *, most: float = math.inf, seconds: float = math.inf) -> None:
        self._most, self._seconds = most, seconds
        self._count, self._spent_seconds = 0, 0.0  # in this iteration
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
        if not has_turn and (self._new or self._count >= self._most or self._spent_seconds >= self._seconds):
            return False
        self._count += 1
        if not self._ticks:
            self._ticks = True
            asyncio.get_running_loop().call_soon(self._next)
        began = time.perf_counter()
        try:
            work()
        finally:
            self._spent_seconds += time.perf_counter() - began
        return True

    def enqueue(self, connection: Member, work: Work, *, backlog: bool = False) -> None:
        """Run some work in one of the next iterations: one piece for each connection."""
        (self._backlog if backlog else self._new).setdefault(connection.client, {})[connection] = work
        if not backlog:
            if not self._ticks:
                self._tick()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LEAST_PAUSE_SECONDS, self._run_backlog)

    async def wait(self, connection: Member) -> None:
        """Wait for the turn of a connection."""
        if self._new or self._count >= self._most or self._spent_seconds >= self._seconds:
            entered = asyncio.get_running_loop().create_future()
            self.enqueue(connection, partial(_wake, entered))
            await entered
        else:
            self._count += 1
            if not self._ticks:
                self._tick()

    def leave(self, connection: Member) -> None:
        """Run the new work of a connection now, if it has any."""
        if connection in self._new.get(connection.client, ()):
            _take(self._new, connection.client, connection)()

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
        self._ticks, self._count, self._spent_seconds = False, 0, 0.0
        if self._new:
            self._tick()
        while self._new and self._count < self._most and self._spent_seconds < self._seconds:
            self.run(_take(self._new, next(iter(self._new))), has_turn=True)

    def _run_backlog(self) -> None:
        """Run a round of the backlog, and set the timer of the next one."""
        began, spent = time.perf_counter(), 0.0
        try:
            for _ in range(BACKLOG_MOST):
                if self._backlog and spent < self._seconds:
                    _take(self._backlog, next(iter(self._backlog)))()
                    spent = time.perf_counter() - began
        finally:
            pause = max(LEAST_PAUSE_SECONDS, (BACKLOG_SHARE - 1) * spent)
            self._timer = asyncio.get_running_loop().call_later(pause, self._run_backlog) if self._backlog else None


def _take(queue: Queue, client: Hashable, connection: Member | None = None) -> Work:
    """Remove and return the work of a connection, by default of the client's next; the client is the last one then."""
    works = queue.pop(client)
    work = works.pop(next(iter(works)) if connection is None else connection)
    if works:
        queue[client] = works
    return work


def _wake(entered: "asyncio.Future[None]") -> None:
    if not entered.done():
        entered.set_result(None)


FIRST_REQUESTS, NEXT_REQUESTS = 2, 4
"""How many requests may begin in one iteration of the event loop: the first ones of their connections, and later ones.
Many requests of one kind then delay neither the others nor health checks."""
PARSE_SECONDS = 0.0005
"""Time in one iteration of the event loop after which no more connections begin to parse."""
RESERVED = 64
"""Connections beyond the limit: newcomers until their request is known, requests for the service's health, and refused
clients that read why."""
RESERVE_SECONDS = 2.0
"""How long a newcomer beyond the limit may take to send the headers of its request."""
COMPARED = 64
"""The slowest connection is the slowest of this many whose clients have been silent for longest."""


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
        self.first_came: Callable[[], None] = lambda: None
        """Called when there is a connection again."""
        self._members: set[Member] = set()
        self._reserve: dict[Member, None] = {}  # in the order in which they came
        self._new: dict[Member, None] = {}  # members, in the order in which they became idle
        self._answered: dict[Member, float] = {}  # since when they are idle, the longest first
        self._awaiting: dict[Member, None] = {}  # members that wait for their client's bytes, the longest first
        self._stalled: dict[Member, float] = {}  # since when their clients do not read, the longest first
        self.parsing = Turns(seconds=PARSE_SECONDS)
        self.first_requests, self.next_requests = Turns(most=FIRST_REQUESTS), Turns(most=NEXT_REQUESTS)

    def __len__(self) -> int:
        return len(self._members)

    def add(self, connection: Member) -> None:
        """Count a new connection: as a member while there is a slot, else in the reserve, whose oldest may go."""
        if self._bound.free > 0:
            self._join(connection)
            self._new[connection] = None
        else:
            self._enter_reserve(connection)

    def start(self, connection: Member, *, health: bool = False) -> bool:
        """Begin a request: its connection has a slot, gets one, or needs none for `health`; False if it is refused.

        The connection of a request in the reserve is closed after the response.
        """
        if connection in self._members:
            self._new.pop(connection, None)
            self._answered.pop(connection, None)
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

    def idle(self, connection: Member) -> None:
        """Its response is complete, and it has no other request."""
        if connection in self._members:
            self._answered[connection] = self._clock()

    def await_client(self, connection: Member) -> None:
        """It waits for more of an upload or for a stream's next message, from now on."""
        self._awaiting.pop(connection, None)
        if connection in self._members:
            self._awaiting[connection] = None

    def serve(self, connection: Member) -> None:
        """It no longer waits for its client."""
        self._awaiting.pop(connection, None)

    def stall(self, connection: Member) -> None:
        """Its client does not read as fast as its response comes."""
        if connection in self._members:
            self._stalled.setdefault(connection, self._clock())

    def read_on(self, connection: Member) -> None:
        """Its client reads fast enough again."""
        self._stalled.pop(connection, None)

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

    def unread_seconds(self, connection: Member) -> float:
        """For how long its client has not read; 0 if it reads."""
        since = self._stalled.get(connection)
        return 0.0 if since is None else self._clock() - since

    def _join(self, connection: Member) -> None:
        self._members.add(connection)
        self._bound.add(1)
        if len(self._members) == 1:
            self.first_came()

    def _leave(self, connection: Member) -> None:
        self._members.discard(connection)
        for order in (self._new, self._answered, self._awaiting, self._stalled):
            order.pop(connection, None)
        for turns in (self.first_requests, self.next_requests):
            turns.leave(connection)
        self._bound.add(-1)

    def _enter_reserve(self, connection: Member) -> None:
        if len(self._reserve) >= self._reserved:
            oldest = next(iter(self._reserve))
            del self._reserve[oldest]
            metrics.CONNECTIONS_CLOSED.labels("refused").inc()
            oldest.transport.abort()
        self._reserve[connection] = None

    def _displace(self) -> bool:
        """End the least useful connection, if there is one."""
        unused = next(iter(self._new), None)
        stalled, answered = next(iter(self._stalled), None), next(iter(self._answered), None)
        idle = answered is not None and self._clock() - self._answered[answered] > IDLE_SECONDS
        if unused is not None:
            self._end(unused, "idle")
        elif answered is not None and idle:
            self._end(answered, "idle")
        elif stalled is not None and self.unread_seconds(stalled) >= IDLE_SECONDS:
            metrics.CONNECTIONS_CLOSED.labels("unread").inc()
            stalled.transport.abort()
            self._leave(stalled)
        elif (slowest := self._slowest()) is not None and (answered is None or slowest.pace.is_slow):
            self._end(slowest, "slow")
        elif answered is not None:
            self._end(answered, "idle")
        else:
            return False
        return True

    def _slowest(self) -> Member | None:
        silent = islice(self._awaiting, COMPARED)
        return min(silent, key=lambda connection: connection.pace.bytes_per_second, default=None)

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
