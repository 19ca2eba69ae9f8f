"""How many bytes of answers a process holds until their clients have read them, and who goes when room is short."""

import asyncio
from collections.abc import Callable
from typing import Self

import anyio

from gateway import metrics
from gateway.errors import Overloaded

RELEASE_SECONDS = 1.0
"""Within this a connection that was closed gives back what was held for it, unless much else is going on."""


class HeldResponse:
    """The bytes of one answer that are held, while it is made and until they are sent; none once its context ends."""

    def __init__(self, room: "ResponseBuffer") -> None:
        self._room = room
        self.nbytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shrink(self.nbytes)

    async def grow(self, nbytes: int) -> None:
        """Count `nbytes` more; raises Overloaded where there is no room for them, and nobody to make some."""
        await self._room.take(self, nbytes)

    def shrink(self, nbytes: int) -> None:
        """Count `nbytes` less."""
        self._room.give_back(self, min(nbytes, self.nbytes))


class ResponseBuffer:
    """The bytes of all answers of a process that are made or sent, at most `max_bytes`.

    When room is short, `close_slowest` closes the connection of the client that has kept its answer waiting for
    longest, and says whether there is one. An answer larger than all room is made when nobody else has one.
    """

    def __init__(self, max_bytes: int, close_slowest: Callable[[], bool]) -> None:
        self.max_bytes = max_bytes
        self.nbytes = 0
        self._close_slowest = close_slowest
        self._released = asyncio.Event()
        metrics.ANSWER_BYTES_LIMIT.set(max_bytes)

    def open(self) -> HeldResponse:
        """A count of what one answer holds."""
        return HeldResponse(self)

    async def take(self, answer: HeldResponse, nbytes: int) -> None:
        """See HeldAnswer.grow."""
        while self.nbytes + nbytes > self.max_bytes and self.nbytes > answer.nbytes:
            if not self._close_slowest():
                raise Overloaded(
                    f"Answers hold {self.max_bytes} bytes already, the maximum; try again later.",
                    limit="max_bytes_unread",
                    value=self.max_bytes,
                )
            self._released.clear()
            with anyio.move_on_after(RELEASE_SECONDS):
                await self._released.wait()
        self._count(answer, nbytes)

    def give_back(self, answer: HeldResponse, nbytes: int) -> None:
        """See HeldAnswer.shrink."""
        self._count(answer, -nbytes)
        self._released.set()

    def _count(self, answer: HeldResponse, nbytes: int) -> None:
        answer.nbytes += nbytes
        self.nbytes += nbytes
        metrics.ANSWER_BYTES.inc(nbytes)
