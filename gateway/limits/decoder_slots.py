"""The slots of the decoders: a few at a time, within a number of bytes, alternating between requests."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway import metrics
from gateway.limits.account import Account
from gateway.limits.lease import Bound, Lease, admission


class DecoderSlots:
    """`count` slots, whose images need `nbytes` of memory at most in all.

    Waiting images are served round-robin by request, so that a request with many images does not delay the others.
    """

    def __init__(self, count: int, nbytes: int) -> None:
        self.slots = Bound("decoders", count)
        self.bytes = Bound("decode_memory_bytes", nbytes, metrics.DECODING_BYTES)
        self._waiting: dict[Account, deque[tuple[int, asyncio.Future[Lease]]]] = {}

    @asynccontextmanager
    async def lease(self, account: Account, nbytes: int) -> AsyncIterator[None]:
        """Hold a slot and `nbytes` of memory for an image of the request with this account."""
        admitted: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(account, deque()).append((nbytes, admitted))
        self._admit()
        with await admission(admitted, self._admit):  # smaller images may wait behind one that gives up
            yield

    def _admit(self) -> None:
        while self._waiting:
            nbytes, admitted = next(iter(self._waiting.values()))[0]
            if not admitted.done():
                if self.slots.free < 1 or nbytes > self.bytes.free:
                    return
                admitted.set_result(Lease((self.slots, self.bytes), (1, nbytes), self._admit))
            self._remove_first()

    def _remove_first(self) -> None:
        """Remove the first waiter; the next one of its request goes behind the other requests."""
        account, waiters = next(iter(self._waiting.items()))
        del self._waiting[account]
        waiters.popleft()
        if waiters:
            self._waiting[account] = waiters
