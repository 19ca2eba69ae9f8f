"""The slots of the decoders: a few at a time, within a number of bytes, alternating between requests."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from gateway import metrics
from gateway.limits.account import Account


@dataclass(frozen=True, slots=True)
class _Waiter:
    """An image that waits for a slot and for memory."""

    nbytes: int
    admitted: "asyncio.Future[None]"


class DecoderSlots:
    """`count` slots, whose images need `nbytes` of memory at most in all.

    Waiting images are served round-robin by request, so that a request with many images does not delay the others.
    """

    def __init__(self, count: int, nbytes: int) -> None:
        self.free = count
        """Free slots."""
        self.free_bytes = nbytes
        self._waiting: dict[Account, deque[_Waiter]] = {}

    @asynccontextmanager
    async def turn(self, account: Account, nbytes: int) -> AsyncIterator[None]:
        """Hold a slot and `nbytes` of memory for an image of the request with this account."""
        waiter = _Waiter(nbytes, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(account, deque()).append(waiter)
        self._admit()
        try:
            await waiter.admitted
        except asyncio.CancelledError:
            if waiter.admitted.cancelled():
                self._admit()  # smaller images may have waited behind it
            else:  # admitted and cancelled at the same time
                self._give_back(nbytes)
            raise
        try:
            yield
        finally:
            self._give_back(nbytes)

    def _give_back(self, nbytes: int) -> None:
        self.free += 1
        self.free_bytes += nbytes
        metrics.DECODING_BYTES.dec(nbytes)
        self._admit()

    def _admit(self) -> None:
        while self._waiting:
            waiter = next(iter(self._waiting.values()))[0]
            if not waiter.admitted.done():
                if not self.free or waiter.nbytes > self.free_bytes:
                    return
                self.free -= 1
                self.free_bytes -= waiter.nbytes
                metrics.DECODING_BYTES.inc(waiter.nbytes)
                waiter.admitted.set_result(None)
            self._remove_first()

    def _remove_first(self) -> None:
        """Remove the first waiter; the next one of its request goes behind the other requests."""
        account, waiters = next(iter(self._waiting.items()))
        del self._waiting[account]
        waiters.popleft()
        if waiters:
            self._waiting[account] = waiters
