"""How many messages of unknown size may arrive at once."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from gateway.errors import Overloaded, UploadTimeout
from gateway.limits.pools import IDLE_SECONDS

T = TypeVar("T")


class Arrivals:
    """Slots for messages that gRPC reads as a whole: how much of one has arrived is not known before it is complete.

    A message waits at most `max_wait_seconds` for a slot, and must arrive within `timeout_seconds`. While another one
    waits, the message that has been arriving for longest is given up once that has taken IDLE_SECONDS, and the call
    that came last gets the slot. So calls that send nothing, however many came before, delay another one by about a
    second.
    """

    def __init__(self, most: int, *, max_wait_seconds: float, timeout_seconds: float) -> None:
        self.most = most
        self._max_wait_seconds = max_wait_seconds
        self._timeout_seconds = timeout_seconds
        self._free = most
        self._waiting: list[asyncio.Future[None]] = []
        self._arriving: dict[asyncio.Timeout, float] = {}
        """When each message began to arrive, the oldest first."""

    async def receive(self, read: Callable[[], Awaitable[T]]) -> T:
        """Read one message; raises Overloaded without a slot or if the slot is needed, and UploadTimeout."""
        await self._slot()
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout(self._timeout_seconds) as timeout:
                self._arriving[timeout] = began
                if self._waiting:
                    self._hurry_oldest()
                try:
                    return await read()
                finally:
                    del self._arriving[timeout]
        except TimeoutError:
            if loop.time() - began < self._timeout_seconds:
                raise Overloaded(
                    f"Too many messages arrive at once ({self.most}), and this one has taken longest; retry later."
                ) from None
            raise UploadTimeout(
                f"The message did not arrive in time: the limit upload_timeout_seconds is {self._timeout_seconds:g} s.",
                limit="upload_timeout_seconds",
                value=self._timeout_seconds,
            ) from None
        finally:
            self._release()

    async def _slot(self) -> None:
        if self._free:
            self._free -= 1
            return
        self._hurry_oldest()
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            async with asyncio.timeout(self._max_wait_seconds):
                await waiter
        except BaseException as error:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            elif not waiter.cancelled():  # it got the slot in the moment of its end
                self._release()
            if not isinstance(error, TimeoutError):
                raise
            raise Overloaded(
                f"Too many messages arrive at once ({self.most}); retry later.",
                limit="max_wait_seconds",
                value=self._max_wait_seconds,
            ) from None

    def _release(self) -> None:
        """Pass a slot on to the call that came last."""
        while self._waiting:
            if not (waiter := self._waiting.pop()).done():
                waiter.set_result(None)
                return
        self._free += 1

    def _hurry_oldest(self) -> None:
        """Shorten the time of the oldest message whose time is not shortened yet; each that waits needs one slot."""
        now = asyncio.get_running_loop().time()
        for timeout, began in self._arriving.items():
            until = max(began + IDLE_SECONDS, now)
            ends = timeout.when()
            if not timeout.expired() and (ends is None or ends > until):
                timeout.reschedule(until)
                return
