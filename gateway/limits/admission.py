"""How many images, how many bytes of them, and how much decoding may be in flight and waiting at once."""

import asyncio
import itertools
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple, Self

from gateway import metrics
from gateway.errors import Overloaded
from gateway.limits.lease import Bound, Lease, admission

COSTLY_SECONDS = 0.05
"""An image that takes this long to decode is costly: it waits behind other costly images, and cheap ones pass it."""
SECONDS_PER_DECODER = 2.0
"""Seconds of decoding of costly images that may be in flight for each decoder."""
COSTLY_SHARE, COSTLY_BYTES_SHARE = 0.5, 0.75
"""The share of the images in flight and of the queue that costly images may take, and of the bytes in flight."""


class Load(NamedTuple):
    """What one image takes while it is in flight: bytes, and processor time to decode it if it is costly."""

    nbytes: int
    decode_seconds: float = 0.0

    @property
    def costly(self) -> bool:
        """Whether its decoding counts."""
        return self.decode_seconds > 0


class Permit(Lease):
    """Permission for one image to be in flight."""

    __slots__ = ("_permits", "load")

    def __init__(self, permits: "Permits", load: Load) -> None:
        gate = permits.admission
        super().__init__((gate.images, gate.bytes), (1, load.nbytes), gate.admit)
        self._permits = permits
        self.load = load
        if load.costly:
            gate.decoding[self] = None
        permits._permits.add(self)

    def shrink(self, nbytes: int) -> None:
        """Give back what is no longer needed once the image is decoded: all but `nbytes`."""
        images, held_bytes = self.amounts
        if images:
            self._permits.admission.decoding.pop(self, None)
            self._set((images, min(nbytes, held_bytes)))
            self._permits.admission.admit()  # a decoder may be idle, even if no byte was given back

    def release(self) -> None:
        """Let the next waiting image in, as soon as no uncancellable work runs."""
        self._permits._forget(self)
        super().release()

    def _end(self) -> None:
        self._permits.admission.decoding.pop(self, None)
        super()._end()


class Permits:
    """All permits of one request; those that are left when it ends are released, so that none can be lost."""

    def __init__(self, gate: "Admission") -> None:
        self.admission = gate
        self._permits: set[Permit] = set()
        self._released = asyncio.Event()

    def __len__(self) -> int:
        return len(self._permits)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for permit in list(self._permits):
            permit.release()

    def try_acquire(self, nbytes: int, decode_seconds: float = 0.0) -> Permit | None:
        """A permit if the image fits now and no other image waits before it, else None.

        `decode_seconds` is the expected time to decode the image in the gateway. An image that exceeds a limit by
        itself fits while nothing else is in flight.
        """
        load = self.admission.load_of(nbytes, decode_seconds)
        return Permit(self, load) if self.admission.admits(load) else None

    async def acquire(self, nbytes: int, decode_seconds: float = 0.0, *, begun: bool = False) -> Permit:
        """Wait until the image fits; raises Overloaded if the queue is full.

        With `begun`, other images of the request were admitted already; then it may evict an image of a request of
        which none was.
        """
        load = self.admission.load_of(nbytes, decode_seconds)
        if self.admission.admits(load):
            return Permit(self, load)
        return await self.admission.wait(self, load, begun=begun)

    async def fewer_than(self, count: int) -> None:
        """Wait until the request has less than `count` permits; one task at a time."""
        while len(self._permits) >= count:
            self._released.clear()
            await self._released.wait()

    def _forget(self, permit: Permit) -> None:
        self._permits.discard(permit)
        self._released.set()


@dataclass(eq=False, slots=True)
class _Waiter:
    """An image in the queue: `admitted` is done when it has a permit, and fails when it is evicted."""

    number: int
    permits: Permits
    load: Load
    begun: bool
    admitted: "asyncio.Future[Permit]"


class Admission:
    """Admits images in the order of arrival; cheap images pass costly ones that wait for a decoder.

    A request with a waiting image stops reading its body, so that it has one image in the queue however many files it
    sends, and requests alternate.
    """

    def __init__(
        self,
        *,
        max_images: int,
        max_bytes: int,
        max_images_waiting: int,
        max_wait_seconds: float,
        decoders: int = 1,
    ) -> None:
        self.images = Bound(
            "max_images_in_flight", max_images, metrics.IMAGES_IN_FLIGHT, metrics.IMAGES_IN_FLIGHT_LIMIT
        )
        self.bytes = Bound("max_bytes_in_flight", max_bytes, metrics.BYTES_IN_FLIGHT, metrics.BYTES_IN_FLIGHT_LIMIT)
        self.waiting = Bound(
            "max_images_waiting", max_images_waiting, metrics.IMAGES_WAITING, metrics.IMAGES_WAITING_LIMIT
        )
        self.max_wait_seconds = max_wait_seconds
        self._decoders = decoders
        self.decoding: dict[Permit, None] = {}
        """Costly images in flight that are not decoded yet."""
        self._numbers = itertools.count()
        self._cheap_queue: deque[_Waiter] = deque()
        self._costly_queue: deque[_Waiter] = deque()

    def check(self) -> None:
        """Raise Overloaded if the queue is full."""
        if self.waiting.free <= 0:
            raise self._full()

    def has_room(self, images: int, nbytes: int) -> bool:
        """Whether so many images and bytes would fit now while no image waits; reserves nothing."""
        return images <= self.images.free and nbytes <= self.bytes.free and not self.waiting.held

    def permits(self) -> Permits:
        """The permits of a new request."""
        return Permits(self)

    def load_of(self, nbytes: int, decode_seconds: float) -> Load:
        """What an image takes."""
        return Load(min(nbytes, self.bytes.most), decode_seconds if decode_seconds >= COSTLY_SECONDS else 0.0)

    def admits(self, load: Load) -> bool:
        """Whether an image fits now, and no other image waits before it."""
        if load.costly and (self._costly_queue or not self._may_decode(load)):
            return False
        return self._fits(load) and not (self.waiting.held and self._next() is not None)

    async def wait(self, permits: Permits, load: Load, *, begun: bool) -> Permit:
        """Wait for a permit; raises Overloaded if the queue is full."""
        queue = self._costly_queue if load.costly else self._cheap_queue
        if self.waiting.free <= 0:
            self._evict_newest(self._costly_queue, self._cheap_queue, begun=begun)
        elif load.costly and len(queue) >= max(self.waiting.most * COSTLY_SHARE, 1):
            self._evict_newest(queue, begun=begun)
        admitted: asyncio.Future[Permit] = asyncio.get_running_loop().create_future()
        waiter = _Waiter(next(self._numbers), permits, load, begun, admitted)
        queue.append(waiter)
        self.waiting.add(1)
        return await admission(admitted, lambda: self._give_up(waiter))

    def admit(self) -> None:
        """Give permits to the images that fit now."""
        while self.waiting.held and (waiter := self._next()) is not None and self._fits(waiter.load):
            self._dequeue(waiter)
            if not waiter.admitted.done():
                waiter.admitted.set_result(Permit(waiter.permits, waiter.load))

    def _give_up(self, waiter: _Waiter) -> None:
        if waiter in self._costly_queue or waiter in self._cheap_queue:
            self._dequeue(waiter)
            self.admit()  # smaller images may have waited behind it

    def _dequeue(self, waiter: _Waiter) -> None:
        (self._costly_queue if waiter.load.costly else self._cheap_queue).remove(waiter)
        self.waiting.add(-1)

    def _evict_newest(self, *queues: deque[_Waiter], begun: bool) -> None:
        """Evict the newest image of a request that has not begun; raises Overloaded if that is the new image itself.

        Otherwise a request that has begun would be left half done, and an earlier one would yield to a later one.
        """
        waiters = [waiter for queue in queues for waiter in queue if not waiter.begun]
        if not begun or not waiters:
            raise self._full()
        newest = max(waiters, key=lambda waiter: waiter.number)
        self._dequeue(newest)
        if not newest.admitted.done():
            newest.admitted.set_exception(self._full())

    def _full(self) -> Overloaded:
        return self.waiting.full("{} images are already waiting, the maximum; try again later.")

    def _next(self) -> _Waiter | None:
        """The first image in the queue that does not wait for a decoder."""
        costly = self._costly_queue[0] if self._costly_queue else None
        if costly is not None and not self._may_decode(costly.load):
            costly = None
        cheap = self._cheap_queue[0] if self._cheap_queue else None
        if costly is None or cheap is None:
            return costly or cheap
        return min(costly, cheap, key=lambda waiter: waiter.number)

    def _fits(self, load: Load) -> bool:
        return self.images.free > 0 and load.nbytes <= self.bytes.free

    def _may_decode(self, load: Load) -> bool:
        """Whether a costly image may join those in flight, because a decoder is idle or will be soon."""
        decoding = [permit.load for permit in self.decoding]
        if not load.costly or not decoding:
            return True
        nbytes = sum(each.nbytes for each in decoding) + load.nbytes
        if nbytes > self.bytes.most * COSTLY_BYTES_SHARE or len(decoding) >= self.images.most * COSTLY_SHARE:
            return False
        seconds = sum(each.decode_seconds for each in decoding) + load.decode_seconds
        return len(decoding) < self._decoders or seconds <= SECONDS_PER_DECODER * self._decoders
