"""What clients hold at once: bounds, and leases of a part of them."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Self, TypeVar

from prometheus_client import Gauge

from gateway.errors import Overloaded
from gateway.values.quantities import size


class Bound:
    """The most of something that all clients may hold together, and how much of it they hold.

    `name` is that of its setting; the gauges show both figures.
    """

    __slots__ = ("_gauge", "held", "most", "name")

    def __init__(self, name: str, most: int, gauge: Gauge | None = None, most_gauge: Gauge | None = None) -> None:
        self.name, self.most, self.held = name, most, 0
        self._gauge = gauge
        if most_gauge is not None:
            most_gauge.set(most)

    @property
    def free(self) -> int:
        """How much is not held."""
        return self.most - self.held

    def add(self, amount: int) -> None:
        """Add `amount`, which may be negative."""
        self.held += amount
        if self._gauge is not None:
            self._gauge.inc(amount)

    def full(self, message: str) -> Overloaded:
        """The error for a client that does not get what it needs; {} in the message is the most."""
        most = size(self.most) if self.name.startswith("max_bytes_") else f"{self.most:,}"
        return Overloaded(message.format(most), limit=self.name, value=self.most)


def _nothing() -> None:
    """Do nothing."""


class Lease:
    """How much one client holds of some bounds, until it is released, or its context ends.

    Uncancellable work keeps it, even if it is released meanwhile, until the work has ended. `freed` is called when it
    gives everything back. A subclass that counts otherwise sets `_kept` and `_released` itself, to False.
    """

    __slots__ = ("_freed", "_held", "_kept", "_released")

    def __init__(self, bounds: Sequence[Bound], amounts: Sequence[int], freed: Callable[[], None] = _nothing) -> None:
        self._held = list(zip(bounds, amounts, strict=True))
        self._freed = freed
        self._kept = self._released = False
        for bound, amount in self._held:
            bound.add(amount)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def keep(self) -> None:
        """Begin work that cannot be cancelled: everything is held until `settle`, even if it is released before."""
        self._kept = True

    def settle(self) -> None:
        """End such work."""
        self._kept = False
        if self._released:
            self._end()

    def release(self) -> None:
        """Give everything back, as soon as no uncancellable work runs; a second call does nothing."""
        self._released = True
        if not self._kept:
            self._end()

    def _end(self) -> None:
        """Give everything back, unless that was done before."""
        held, self._held = self._held, []
        for bound, amount in held:
            bound.add(-amount)
        if held:
            self._freed()


L = TypeVar("L", bound=Lease)


async def admission(admitted: "asyncio.Future[L]", leave: Callable[[], None]) -> L:
    """The lease of a client that waits for one.

    If the wait is cancelled, the lease is released if it was admitted at the same moment, and else `leave` is called.
    """
    try:
        return await admitted
    except asyncio.CancelledError:
        if admitted.done() and not admitted.cancelled() and admitted.exception() is None:
            admitted.result().release()
        else:
            leave()
        raise
