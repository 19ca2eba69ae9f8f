"""Turns at something scarce: a few at a time, within so many bytes, requests round and round."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from gateway import metrics
from gateway.limits.account import Account


class DecoderSlots:
    """Room for `count` at once, which hold `nbytes` in all; whoever brings many waits longer with each."""

    def __init__(self, count: int, nbytes: int) -> None:
        self.free = count
        """Places that nobody has."""
        self.free_bytes = nbytes
        self._turns = _Turns()

    @asynccontextmanager
    async def turn(self, account: Account, nbytes: int) -> AsyncIterator[None]:
        """A place, and room for `nbytes`, while the block lasts."""
        turn = self._turns.join(account, nbytes)
        self._call_next()
        try:
            await turn.come
        except asyncio.CancelledError:
            if turn.come.cancelled():
                self._call_next()  # others may have waited behind it
            else:  # it came at the same moment
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
        self._call_next()

    def _call_next(self) -> None:
        while (turn := self._turns.first()) and self.free and turn.nbytes <= self.free_bytes:
            self.free -= 1
            self.free_bytes -= turn.nbytes
            metrics.DECODING_BYTES.inc(turn.nbytes)
            self._turns.leave_first()
            turn.come.set_result(None)


@dataclass(frozen=True, slots=True)
class _Waiter:
    """Something that waits for a place and for room."""

    nbytes: int
    come: "asyncio.Future[None]"


class _Turns:
    """Who waits: one turn for each request, round and round."""

    def __init__(self) -> None:
        self._waiting: dict[Account, deque[_Waiter]] = {}

    def join(self, account: Account, nbytes: int) -> _Waiter:
        """Stand in the queue; the turn has come when its future is done."""
        turn = _Waiter(nbytes, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(account, deque()).append(turn)
        return turn

    def first(self) -> _Waiter | None:
        """Whose turn is next; None where nobody waits."""
        while self._waiting:
            turn = next(iter(self._waiting.values()))[0]
            if not turn.come.done():
                return turn
            self.leave_first()
        return None

    def leave_first(self) -> None:
        """Take the first one out of the queue; its request's next one goes behind the others."""
        account, turns = next(iter(self._waiting.items()))
        del self._waiting[account]
        turns.popleft()
        if turns:
            self._waiting[account] = turns
