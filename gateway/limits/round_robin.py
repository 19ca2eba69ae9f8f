"""Bounds whose leases alternate between requests: the decoders, and the slots for images that are fetched."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Hashable, Sequence
from contextlib import asynccontextmanager

from gateway.limits.lease import Bound, Lease, admission


class RoundRobin:
    """Some bounds, of which each image holds a lease.

    Waiting images are served round-robin by request, so that a request with many images does not delay the others.
    """

    def __init__(self, *bounds: Bound) -> None:
        self.bounds = bounds
        self._waiting: dict[Hashable, deque[tuple[Sequence[int], asyncio.Future[Lease]]]] = {}

    @asynccontextmanager
    async def lease(self, request: Hashable, *amounts: int) -> AsyncIterator[None]:
        """Hold so much of each bound for an image of a request."""
        admitted: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(request, deque()).append((amounts, admitted))
        self._admit()
        with await admission(admitted, self._admit):  # smaller images may wait behind one that gives up
            yield

    def _admit(self) -> None:
        while self._waiting:
            amounts, admitted = next(iter(self._waiting.values()))[0]
            if not admitted.done():
                if any(amount > bound.free for bound, amount in zip(self.bounds, amounts, strict=True)):
                    return
                admitted.set_result(Lease(self.bounds, amounts, self._admit))
            self._remove_first()

    def _remove_first(self) -> None:
        """Remove the first waiter; the next one of its request goes behind the other requests."""
        request, waiters = next(iter(self._waiting.items()))
        del self._waiting[request]
        waiters.popleft()
        if waiters:
            self._waiting[request] = waiters
