"""Bounds whose leases alternate between clients and their requests: decoders, open files, images that are fetched."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from contextlib import asynccontextmanager

from gateway.limits.lease import Bound, Lease, admission

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
        """Hold so much of each bound for an image of a request."""
        with await self.acquire(request, *amounts, client=client):
            yield

    async def acquire(self, request: Hashable, *amounts: int, client: Hashable = None) -> Lease:
        """A lease of so much of each bound, for an image of a request."""
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
