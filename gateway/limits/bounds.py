"""Bounds of what is in flight, leases of their parts, and a queue in which clients take turns for leases."""

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Self

from prometheus_client import Gauge

from gateway.errors import Overloaded
from gateway.values.quantities import size


class Bound:
    """A limit for all clients together, and the amount in use.

    `name` is the setting's name; the gauges show both figures.
    """

    __slots__ = ("__weakref__", "_gauge", "held", "most", "name")

    def __init__(self, name: str, most: int, gauge: Gauge | None = None, most_gauge: Gauge | None = None) -> None:
        self.name, self.most, self.held = name, most, 0
        self._gauge = gauge
        if most_gauge is not None:
            most_gauge.set(most)

    @property
    def free(self) -> int:
        """How much is not held."""
        return self.most - self.held

    def add(self, amount: int) -> None:
        """Add `amount`, which may be negative."""
        self.held += amount
        if self._gauge is not None:
            self._gauge.inc(amount)

    def full(self, message: str) -> Overloaded:
        """The error for a client that does not get what it needs; {} in the message is the most."""
        most = size(self.most) if self.name.startswith("max_bytes_") else f"{self.most:,}"
        return Overloaded(message.format(most), limit=self.name, value=self.most)


@dataclass(eq=False, slots=True)
class Lease:
    """The amounts of some bounds that one image needs. It waits for them in a queue, and holds them until the release.

    A context manager, which acquires and releases. Work that cannot be cancelled pins a lease: then everything is held
    until the work has ended, even if the lease is released before.
    """

    queue: "FairQueue"
    amounts: dict[Bound, int]
    """It waits for the first one that it lacks, so the ones that most others need come last."""
    request: Hashable = None
    client: Hashable = None
    weight: float = 1.0
    """Of the client, compared with others in the queue."""
    counted_in: tuple[Bound, ...] = ()
    """Bounds of the queue, which count the lease while it waits."""
    on_release: Callable[["Lease"], None] | None = None
    number: int = field(init=False, default=0)
    """Its number by arrival in the queue."""
    granted: "asyncio.Future[Overloaded | None] | None" = field(init=False, default=None)
    """While it is in the queue: done when the wait ends, with the error of an eviction."""
    _holds: bool = field(init=False, default=False)
    _pinned: bool = field(init=False, default=False)
    _released: bool = field(init=False, default=False)

    async def __aenter__(self) -> Self:
        await self.acquire()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.release()

    def try_acquire(self) -> bool:
        """Hold the amounts and return True, if they are free now and no lease in the queue waits for their bounds."""
        awaited = self.queue.awaited() if self.queue.lines else ()
        for bound, amount in self.amounts.items():
            if amount > bound.most - bound.held or bound in awaited:
                return False
        self.hold()
        return True

    async def acquire(self) -> None:
        """Wait until the amounts are free, and hold them."""
        if not self.try_acquire():
            await self.queue.wait(self)

    def reduce(self, amounts: dict[Bound, int]) -> None:
        """Give back all but these amounts of some bounds."""
        if self._holds:
            for bound, amount in amounts.items():
                excess = self.amounts.get(bound, 0) - amount
                if excess > 0:
                    self.amounts[bound] = amount
                    bound.add(-excess)
            self.queue.admit()

    def pin(self) -> None:
        """Begin work that cannot be cancelled: everything is held until `unpin`, even if it is released before."""
        self._pinned = True

    def unpin(self) -> None:
        """End such work."""
        self._pinned = False
        if self._released:
            self._give_back()

    def release(self) -> None:
        """Give everything back, as soon as no work pins it; a second call does nothing."""
        self._released = True
        if self.on_release is not None:
            self.on_release(self)
        if not self._pinned:
            self._give_back()

    def hold(self) -> None:
        """Count the amounts."""
        self._holds = True
        for bound, amount in self.amounts.items():
            bound.add(amount)

    def _give_back(self) -> None:
        if self._holds:
            self._holds = False
            for bound, amount in self.amounts.items():
                bound.add(-amount)
            if self.queue.lines:
                self.queue.admit()


MAX_PLACES = 1_024
"""Clients that do not wait, and whose places in a queue are kept."""


class FairQueue:
    """A queue of leases, in which each is delayed only by the ones before it that wait for a bound that it needs.

    Clients take turns by their weights: start-time fair queueing (Goyal, Vin and Cheng, 1996). The requests of a client
    take turns as well. So neither a request with many images nor a client with many requests delays the others.

    Every lease needs the `bounds`: while the first one waits for them, all wait.
    """

    def __init__(self, *bounds: Bound) -> None:
        self.bounds = bounds
        self.lines: dict[tuple[Hashable, ...], dict[Hashable, deque[Lease]]] = {}
        """The leases of one client that need the same bounds, by request; the first request is the next one."""
        self._waiting: dict[Hashable, int] = {}
        """The number of leases of each client that has any in the queue."""
        self._places: dict[Hashable, float] = {}
        """The places of clients; the lowest of the waiting ones is the next, and moves back by 1 / weight."""
        self._last_place = 0.0
        """The place at which a client was served last."""
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return sum(self._waiting.values())

    def __iter__(self) -> Iterator[Lease]:
        """The leases in the queue, client by client."""
        for requests in self.lines.values():
            for leases in requests.values():
                yield from leases

    def lease(self, *amounts: int, request: Hashable = None, client: Hashable = None) -> Lease:
        """A lease of `amounts` of the bounds, one of each, for an image of a request."""
        return Lease(self, dict(zip(self.bounds, amounts, strict=True)), request, client)

    def crowding(self, client: Hashable, weight: float, more: int = 0) -> float:
        """How many leases a client has in the queue, and `more`, by its weight."""
        return (self._waiting.get(client, 0) + more) / weight

    def awaited(self) -> Collection[Bound]:
        """The bounds for which leases wait, so that no other one may have them."""
        return self._next()[1]

    def admit(self) -> None:
        """Let the leases that fit now hold their amounts."""
        while self.lines and (lease := self._next()[0]) is not None:
            client = lease.client
            self._last_place = max(self._last_place, self._places[client])
            self._places[client] = self._last_place + 1 / lease.weight
            granted = self._remove(lease)
            if not granted.done():  # otherwise its wait was cancelled
                lease.hold()
                granted.set_result(None)

    async def wait(self, lease: Lease) -> None:
        """Wait until a lease holds its amounts; raises the error of `evict`."""
        granted = lease.granted = asyncio.get_running_loop().create_future()
        client, lease.number = lease.client, next(self._numbers)
        if client not in self._waiting:
            if len(self._places) > MAX_PLACES + len(self._waiting):
                self._places = {each: self._places[each] for each in self._waiting}
            self._places[client] = max(self._places.get(client, 0.0), self._last_place)
        self._waiting[client] = self._waiting.get(client, 0) + 1
        self.lines.setdefault((client, *lease.amounts), {}).setdefault(lease.request, deque()).append(lease)
        for bound in lease.counted_in:
            bound.add(1)
        try:
            error = await granted
        except asyncio.CancelledError:
            lease.release()  # if it was granted meanwhile
            if lease.granted is not None:
                self._remove(lease)
                self.admit()  # smaller images may have waited behind it
            raise
        if error is not None:
            raise error

    def evict(self, lease: Lease, error: Overloaded) -> None:
        """End the wait of a lease with an error."""
        granted = self._remove(lease)
        if not granted.done():
            granted.set_result(error)

    def _next(self) -> tuple[Lease | None, Collection[Bound]]:
        """The first lease that fits now, and the bounds for which the ones before it wait."""
        first = [next(iter(requests.values()))[0] for requests in self.lines.values()]
        first.sort(key=lambda lease: (self._places[lease.client], lease.number))
        awaited: set[Bound] = set()
        for lease in first:
            needs = lease.amounts.items()
            lacking = next((bound for bound, amount in needs if amount > bound.free or bound in awaited), None)
            if lacking is None:
                return lease, awaited
            awaited.add(lacking)
            if lacking in self.bounds:
                break
        return None, awaited

    def _remove(self, lease: Lease) -> "asyncio.Future[Overloaded | None]":
        """Take a lease out of the queue; its request moves behind the others of its client."""
        granted, lease.granted = lease.granted, None
        assert granted is not None
        client, line = lease.client, (lease.client, *lease.amounts)
        requests = self.lines[line]
        leases = requests.pop(lease.request)
        leases.remove(lease)
        if leases:
            requests[lease.request] = leases
        if not requests:
            del self.lines[line]
        self._waiting[client] -= 1
        if not self._waiting[client]:
            del self._waiting[client]
        for bound in lease.counted_in:
            bound.add(-1)
        return granted
