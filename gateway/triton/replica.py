"""One Triton in use, with its health, its models and its load."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gateway.deadline import Deadline
from gateway.errors import DeadlineExceeded
from gateway.triton.balancing import TritonLoad
from gateway.triton.endpoint import TritonEndpoint
from gateway.triton.health.state import HealthState

if TYPE_CHECKING:
    from gateway.triton.catalogue import Models
    from gateway.triton.health.checker import HealthChecker


class CallGate:
    """A readers-writer lock: calls share it, and an image that may crash a process gets it exclusively.

    If a process crashes during an exclusive call, that image was the cause, and no other image is refused instead. The
    gate covers the calls of one gateway process.
    """

    def __init__(self) -> None:
        self._calls = 0
        self.is_open = True
        """Whether a call can enter without waiting."""
        self._open, self._idle = asyncio.Event(), asyncio.Event()
        self._open.set()

    def __enter__(self) -> None:
        """Begin a call; the gate must be open."""
        self._calls += 1

    def __exit__(self, *_: object) -> None:
        self._calls -= 1
        if not (self._calls or self.is_open):
            self._idle.set()

    async def opened_by(self, deadline: Deadline) -> None:
        """Wait until the gate is open; raises DeadlineExceeded."""
        try:
            async with asyncio.timeout(deadline.left_seconds):
                while not self._open.is_set():
                    await self._open.wait()
        except TimeoutError as error:
            raise DeadlineExceeded from error

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Close the gate and wait for the calls inside to end; one task at a time may do so."""
        self.is_open = False
        self._open.clear()
        try:
            while self._calls:
                self._idle.clear()
                await self._idle.wait()
            yield
        finally:
            self.is_open = True
            self._open.set()


@dataclass(slots=True)
class Replica:
    """One Triton in use, at an address host:port."""

    address: str
    endpoint: TritonEndpoint
    health: HealthState
    checker: "HealthChecker"
    models: "Models"
    load: TritonLoad
    gate: CallGate = field(default_factory=CallGate)
    task: "asyncio.Task[None] | None" = None
