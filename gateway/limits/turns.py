"""Work of many clients in one event loop: a little in each iteration, round-robin by client."""

import asyncio
import math
import time
from collections.abc import Callable, Hashable
from functools import partial
from typing import Generic, Protocol, TypeVar

BACKLOG_SHARE, BACKLOG_MOST = 4, 4
"""Work that did not end in its turn gets 1/BACKLOG_SHARE of the time, at most BACKLOG_MOST pieces of it at once."""
LEAST_PAUSE_SECONDS = 0.001
"""Time between two rounds of the backlog. The loop's timers count milliseconds."""
REFUSAL_SECONDS, FREE_SECONDS, MOST_SECONDS = 0.01, 0.2, 1.0
"""What each refusal adds to the time that a client has to wait, how much of that is free, and the most of it: a client
that is refused more than 100 times a second waits before its next connection is read."""
MAX_REFUSED = 1_024
"""Clients whose refusals are kept."""

Work = Callable[[], None]


class Participant(Protocol):
    """What has turns: a connection."""

    @property
    def client(self) -> Hashable:
        """Turns alternate between clients."""


P = TypeVar("P", bound=Participant)
Queue = dict[Hashable, dict[P, Work]]
"""What waits, by client; the first client is the next one."""


class Turns(Generic[P]):
    """Runs at most `most` pieces of work in one iteration of the event loop, and begins none after `seconds` of it.

    Work that did not end in its turn is enqueued again as backlog, which gets 1/BACKLOG_SHARE of the time: a client
    that sends much that is costly to parse does not delay others, not even those of its address. Turns alternate
    between clients, and those of one client between its connections.
    """

    def __init__(self, *, most: float = math.inf, seconds: float = math.inf) -> None:
        self._most, self._seconds = most, seconds
        self._count, self._spent_seconds = 0, 0.0  # in this iteration
        self._ticks = False
        """Whether `_next` is due in the next iteration."""
        self._new: Queue[P] = {}
        self._backlog: Queue[P] = {}
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
            self._tick()
        began = time.perf_counter()
        try:
            work()
        finally:
            self._spent_seconds += time.perf_counter() - began
        return True

    def enqueue(self, participant: P, work: Work, *, backlog: bool = False) -> None:
        """Run some work in one of the next iterations: one piece for each participant."""
        (self._backlog if backlog else self._new).setdefault(participant.client, {})[participant] = work
        if not backlog:
            if not self._ticks:
                self._tick()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LEAST_PAUSE_SECONDS, self._run_backlog)

    async def wait(self, participant: P) -> None:
        """Wait for the turn of a participant."""
        if self._new or self._count >= self._most or self._spent_seconds >= self._seconds:
            entered = asyncio.get_running_loop().create_future()
            self.enqueue(participant, partial(_wake, entered))
            await entered
        else:
            self._count += 1
            if not self._ticks:
                self._tick()

    def oldest(self) -> P | None:
        """The participant whose turn is next, if one waits."""
        return next((next(iter(works)) for works in self._new.values()), None)

    def leave(self, participant: P) -> None:
        """Run the new work of a participant now, if it has any."""
        if participant in self._new.get(participant.client, ()):
            _take(self._new, participant.client, participant)()

    def refuse(self, client: Hashable) -> None:
        """Count a refusal of what a client sends."""
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


def _take(queue: Queue[P], client: Hashable, participant: P | None = None) -> Work:
    """Remove and return the work of a participant, by default of the client's next; the client is the last one then."""
    works = queue.pop(client)
    work = works.pop(next(iter(works)) if participant is None else participant)
    if works:
        queue[client] = works
    return work


def _wake(entered: "asyncio.Future[None]") -> None:
    if not entered.done():
        entered.set_result(None)
