"""What clients hold at once: bounds, leases of a part of them, and leases for which clients take turns."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from contextlib import asynccontextmanager
from typing import Self, TypeVar

from prometheus_client import Gauge

from gateway.errors import Overloaded
from gateway.values.quantities import size


class Bound:
    """The most of something that all clients may hold together, and how much of it they hold.

    `name` is that of its setting; the gauges show both figures.
    """

    __slots__ = ("_gauge", "held", "most", "name")

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


def _nothing() -> None:
    """Do nothing."""


class Lease:
    """How much one client holds of some bounds, until it is released, or its context ends.

    Uncancellable work keeps it, even if it is released meanwhile, until the work has ended. `freed` is called when it
    gives everything back. A subclass that counts otherwise sets `_kept` and `_released` itself, to False.
    """

    __slots__ = ("_freed", "_held", "_kept", "_released")

    def __init__(self, bounds: Sequence[Bound], amounts: Sequence[int], freed: Callable[[], None] = _nothing) -> None:
        self._held = list(zip(bounds, amounts, strict=True))
        self._freed = freed
        self._kept = self._released = False
        for bound, amount in self._held:
            bound.add(amount)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def keep(self) -> None:
        """Begin work that cannot be cancelled: everything is held until `settle`, even if it is released before."""
        self._kept = True

    def settle(self) -> None:
        """End such work."""
        self._kept = False
        if self._released:
            self._end()

    def release(self) -> None:
        """Give everything back, as soon as no uncancellable work runs; a second call does nothing."""
        self._released = True
        if not self._kept:
            self._end()

    def _end(self) -> None:
        """Give everything back, unless that was done before."""
        held, self._held = self._held, []
        for bound, amount in held:
            bound.add(-amount)
        if held:
            self._freed()


L = TypeVar("L", bound=Lease)


async def admission(admitted: "asyncio.Future[L]", leave: Callable[[], None]) -> L:
    """The lease of a client that waits for one.

    If the wait is cancelled, the lease is released if it was admitted at the same moment, and else `leave` is called.
    """
    try:
        return await admitted
    except asyncio.CancelledError:
        if admitted.done() and not admitted.cancelled() and admitted.exception() is None:
            admitted.result().release()
        else:
            leave()
        raise


Requests = dict[Hashable, deque[tuple[Sequence[int], asyncio.Future[Lease]]]]
"""The waiting images of each request of one client."""


class RoundRobin:
    """Some bounds, of which each image holds a lease.

    Waiting images are served round-robin by client, and those of a client by request: neither a request with many
    images nor a client with many requests delays the others.
    """

    def __init__(self, *bounds: Bound) -> None:
        self.bounds = bounds
        self._waiting: dict[Hashable, Requests] = {}
        self._offers: dict[Callable[[], None], None] = {}

    @asynccontextmanager
    async def lease(self, request: Hashable, *amounts: int, client: Hashable = None) -> AsyncIterator[None]:
        """Hold `amounts` of the bounds, one of each, for an image of a request."""
        with await self.acquire(request, *amounts, client=client):
            yield

    async def acquire(self, request: Hashable, *amounts: int, client: Hashable = None) -> Lease:
        """A lease of `amounts` of the bounds, one of each, for an image of a request."""
        admitted: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, {}).setdefault(request, deque()).append((amounts, admitted))
        self._admit()
        self._take_offers()
        return await admission(admitted, self._admit)  # smaller images may wait behind one that gives up

    def offer(self, give_up: Callable[[], None]) -> None:
        """Call `give_up`, which releases a lease, as soon as an image waits; that may be now."""
        self._offers[give_up] = None
        self._take_offers()

    def withdraw(self, give_up: Callable[[], None]) -> None:
        """Do not call `give_up` any more."""
        self._offers.pop(give_up, None)

    def _take_offers(self) -> None:
        while self._waiting and self._offers:
            give_up = next(iter(self._offers))
            del self._offers[give_up]
            give_up()

    def _admit(self) -> None:
        while self._waiting:
            requests = next(iter(self._waiting.values()))
            amounts, admitted = next(iter(requests.values()))[0]
            if not admitted.done():
                if any(amount > bound.free for bound, amount in zip(self.bounds, amounts, strict=True)):
                    return
                admitted.set_result(Lease(self.bounds, amounts, self._admit))
            self._remove_first()

    def _remove_first(self) -> None:
        """Remove the first waiter; its client goes behind the other clients, and its request behind the client's."""
        client, requests = next(iter(self._waiting.items()))
        request, waiters = next(iter(requests.items()))
        del self._waiting[client], requests[request]
        waiters.popleft()
        if waiters:
            requests[request] = waiters
        if requests:
            self._waiting[client] = requests
