"""How many messages of unknown size may arrive at once."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from gateway.errors import Overloaded, UploadTimeout
from gateway.limits.pools import IDLE_SECONDS

T = TypeVar("T")


class Arrivals:
    """Slots for messages that gRPC reads as a whole: how much of one has arrived is not known before it is complete.

    A message gets a slot in the order of its call, within `max_wait_seconds`, and must arrive within `timeout_seconds`.
    While another one waits for a slot, the message that has been arriving for longest is given up once that has taken
    IDLE_SECONDS. So clients that send nothing delay another one by about a second, and no more.
    """

    def __init__(self, most: int, *, max_wait_seconds: float, timeout_seconds: float) -> None:
        self.most = most
        self._max_wait_seconds = max_wait_seconds
        self._timeout_seconds = timeout_seconds
        self._slots = asyncio.Semaphore(most)
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
            self._slots.release()

    async def _slot(self) -> None:
        if self._slots.locked():
            self._hurry_oldest()
        try:
            async with asyncio.timeout(self._max_wait_seconds):
                await self._slots.acquire()
        except TimeoutError:
            raise Overloaded(
                f"Too many messages arrive at once ({self.most}); retry later.",
                limit="max_wait_seconds",
                value=self._max_wait_seconds,
            ) from None

    def _hurry_oldest(self) -> None:
        """Shorten the time of the oldest message whose time is not shortened yet; each that waits needs one slot."""
        now = asyncio.get_running_loop().time()
        for timeout, began in self._arriving.items():
            until = max(began + IDLE_SECONDS, now)
            ends = timeout.when()
            if not timeout.expired() and (ends is None or ends > until):
                timeout.reschedule(until)
                return
