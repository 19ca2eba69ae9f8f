"""Limits the bytes of responses that a process holds until their clients have read them."""

import asyncio
from collections.abc import Callable
from typing import Self

import anyio

from gateway import metrics
from gateway.errors import Overloaded

RELEASE_SECONDS = 1.0
"""How long to wait until the bytes of a closed connection are released before the next one is closed."""


class HeldResponse:
    """The held bytes of one response, while it is built and until it is sent; 0 once the context ends."""

    def __init__(self, buffer: "ResponseBuffer") -> None:
        self._buffer = buffer
        self.nbytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shrink(self.nbytes)

    async def grow(self, nbytes: int) -> None:
        """Count `nbytes` more; raises Overloaded if the buffer is full and no slow reader can be disconnected."""
        await self._buffer.take(self, nbytes)

    def shrink(self, nbytes: int) -> None:
        """Count `nbytes` less."""
        self._buffer.give_back(self, min(nbytes, self.nbytes))


class ResponseBuffer:
    """The bytes of all responses of a process that are being built or sent, at most `max_bytes`.

    When the buffer is full, `close_slowest` closes the connection whose client has not read for longest; it returns
    False if there is none. A response larger than the buffer is built while there is no other one.
    """

    def __init__(self, max_bytes: int, close_slowest: Callable[[], bool]) -> None:
        self.max_bytes = max_bytes
        self.nbytes = 0
        self._close_slowest = close_slowest
        self._released = asyncio.Event()
        metrics.ANSWER_BYTES_LIMIT.set(max_bytes)

    def open(self) -> HeldResponse:
        """The held bytes of a new response."""
        return HeldResponse(self)

    async def take(self, response: HeldResponse, nbytes: int) -> None:
        """See HeldResponse.grow."""
        while self.nbytes + nbytes > self.max_bytes and self.nbytes > response.nbytes:
            if not self._close_slowest():
                raise Overloaded(
                    f"Answers hold {self.max_bytes} bytes already, the maximum; try again later.",
                    limit="max_bytes_unread",
                    value=self.max_bytes,
                )
            self._released.clear()
            with anyio.move_on_after(RELEASE_SECONDS):
                await self._released.wait()
        self._count(response, nbytes)

    def give_back(self, response: HeldResponse, nbytes: int) -> None:
        """See HeldResponse.shrink."""
        self._count(response, -nbytes)
        self._released.set()

    def _count(self, response: HeldResponse, nbytes: int) -> None:
        response.nbytes += nbytes
        self.nbytes += nbytes
        metrics.ANSWER_BYTES.inc(nbytes)
