"""Calls to one Triton: many at a time, or one alone."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager


class CallGate:
    """A lock for readers and one writer: calls share it, and an image that may end a process is alone with it.

    Only then a process that dies has died of that image, and no other image is refused in its place. It holds for the
    calls of one gateway process.
    """

    def __init__(self) -> None:
        self._calls = 0
        self._open, self._idle = asyncio.Event(), asyncio.Event()
        self._open.set()
        self._idle.set()

    @property
    def is_open(self) -> bool:
        """Whether a call need not wait."""
        return self._open.is_set()

    @contextmanager
    def enter(self) -> Iterator[None]:
        """Run a call while the gate is open."""
        self._calls += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._calls -= 1
            if not self._calls:
                self._idle.set()

    async def opened(self) -> None:
        """Wait until the gate is open."""
        while not self._open.is_set():
            await self._open.wait()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Close the gate, and wait for the calls inside; one task at a time may do that."""
        self._open.clear()
        try:
            await self._idle.wait()
            yield
        finally:
            self._open.set()
