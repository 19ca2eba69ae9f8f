"""How many calls begin in one iteration of the event loop."""

import asyncio
from collections import deque
from collections.abc import Hashable

CALLS_PER_ITERATION = 4
"""Calls that begin in one iteration, so that many that arrive at once do not pause the event loop."""


class CallStarts:
    """A rate limit: a few calls begin in each iteration of the event loop, round-robin by connection."""

    def __init__(self, most: int = CALLS_PER_ITERATION) -> None:
        self._most = most
        self._entered = 0
        self._waiting: dict[Hashable, deque[asyncio.Future[None]]] = {}

    async def wait(self, connection: Hashable) -> None:
        """Wait until a call of the connection may begin."""
        if self._entered < self._most and not self._waiting:
            self._enter()
            return
        entered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(connection, deque()).append(entered)
        await entered

    def _enter(self) -> None:
        if self._entered == 0:
            asyncio.get_running_loop().call_soon(self._next)
        self._entered += 1

    def _next(self) -> None:
        self._entered = 0
        while self._waiting and self._entered < self._most:
            connection, calls = next(iter(self._waiting.items()))
            del self._waiting[connection]
            entered = calls.popleft()
            if calls:
                self._waiting[connection] = calls
            if not entered.done():  # cancelled meanwhile
                entered.set_result(None)
                self._enter()
