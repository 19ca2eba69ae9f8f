"""Calls to one Triton: many at a time, or one exclusively."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager


class CallGate:
    """A readers-writer lock: calls share it, and an image that may crash a process gets it exclusively.

    If a process crashes during an exclusive call, that image was the cause, and no other image is refused instead. The
    gate covers the calls of one gateway process.
    """

    def __init__(self) -> None:
        self._calls = 0
        self._open, self._idle = asyncio.Event(), asyncio.Event()
        self._open.set()
        self._idle.set()

    @property
    def is_open(self) -> bool:
        """Whether a call can enter without waiting."""
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
        """Close the gate and wait for the calls inside to end; one task at a time may do so."""
        self._open.clear()
        try:
            await self._idle.wait()
            yield
        finally:
            self._open.set()
