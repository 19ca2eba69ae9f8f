"""How many images, how many bytes of them, and how much decoding may be in flight and waiting at once."""

import asyncio
import contextlib
import itertools
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple, Self

from gateway import metrics
from gateway.errors import Overloaded

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


_NOTHING = Load(0)


class Lease:
    """A share of a limit: given back once, however often `release` is called, and not while uncancellable work runs."""

    __slots__ = ("_held", "_kept", "_releasing")

    def __init__(self) -> None:
        self._held = True
        self._kept = self._releasing = False

    def keep(self) -> None:
        """Begin work that cannot be cancelled: the lease is held until `settle`, even if it is released before."""
        self._kept = True

    def settle(self) -> None:
        """End such work."""
        self._kept = False
        if self._releasing:
            self._end()

    def release(self) -> None:
        """Give the share back, as soon as no uncancellable work runs."""
        self._releasing = True
        if not self._kept:
            self._end()

    def _end(self) -> None:
        if self._held:
            self._held = False
            self._give_back()

    def _give_back(self) -> None:
        raise NotImplementedError


class Permit(Lease):
    """Permission for one image to be in flight."""

    __slots__ = ("_load", "_permits")

    def __init__(self, permits: "Permits", load: Load) -> None:
        super().__init__()
        self._permits = permits
        self._load = load

    def shrink(self, nbytes: int) -> None:
        """Give back what is no longer needed once the image is decoded: all but `nbytes`."""
        if self._held:
            before, self._load = self._load, Load(min(nbytes, self._load.nbytes))
            self._permits.admission._replace(before, self._load)

    def release(self) -> None:
        """Let the next waiting image in, as soon as no uncancellable work runs."""
        self._permits._forget(self)
        super().release()

    def _give_back(self) -> None:
        self._permits.admission._give_back(self._load)


class Permits:
    """All permits of one request; those that are left when it ends are released, so that none can be lost."""

    def __init__(self, admission: "Admission") -> None:
        self.admission = admission
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
        load = self.admission._load(nbytes, decode_seconds)
        return self._add(load) if self.admission._try_take(load) else None

    async def acquire(self, nbytes: int, decode_seconds: float = 0.0, *, begun: bool = False) -> Permit:
        """Wait until the image fits; raises Overloaded if the queue is full.

        With `begun`, other images of the request were admitted already; then it may evict an image of a request of
        which none was.
        """
        load = self.admission._load(nbytes, decode_seconds)
        if not self.admission._try_take(load):
            await self.admission._wait(load, begun=begun)
        return self._add(load)

    async def fewer_than(self, count: int) -> None:
        """Wait until the request has less than `count` permits; one task at a time."""
        while len(self._permits) >= count:
            self._released.clear()
            await self._released.wait()

    def _add(self, load: Load) -> Permit:
        permit = Permit(self, load)
        self._permits.add(permit)
        return permit

    def _forget(self, permit: Permit) -> None:
        self._permits.discard(permit)
        self._released.set()


@dataclass(eq=False, slots=True)
class _Waiter:
    """An image in the queue: `admitted` is done when it has a permit, and fails when it is evicted."""

    number: int
    load: Load
    begun: bool
    admitted: asyncio.Future[None]


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
        self.max_images = max_images
        self.max_bytes = max_bytes
        self._max_images_waiting = max_images_waiting
        self.max_wait_seconds = max_wait_seconds
        self._decoders = decoders
        self._images = 0
        self._bytes = 0
        self._costly: list[Load] = []
        """Costly images in flight that are not decoded yet."""
        self._numbers = itertools.count()
        self._cheap_queue: deque[_Waiter] = deque()
        self._costly_queue: deque[_Waiter] = deque()
        metrics.IMAGES_IN_FLIGHT_LIMIT.set(max_images)
        metrics.BYTES_IN_FLIGHT_LIMIT.set(max_bytes)
        metrics.IMAGES_WAITING_LIMIT.set(max_images_waiting)

    @property
    def images_in_flight(self) -> int:
        """Images that have a permit."""
        return self._images

    @property
    def bytes_in_flight(self) -> int:
        """Bytes of the images that have a permit."""
        return self._bytes

    @property
    def images_waiting(self) -> int:
        """Images in the queue."""
        return len(self._cheap_queue) + len(self._costly_queue)

    def check(self) -> None:
        """Raise Overloaded if the queue is full."""
        if self.images_waiting >= self._max_images_waiting:
            raise self._full()

    def has_room(self, images: int, nbytes: int) -> bool:
        """Whether so many images and bytes would fit now while no image waits; reserves nothing."""
        fits = self._images + images <= self.max_images and self._bytes + nbytes <= self.max_bytes
        return fits and not self.images_waiting

    def permits(self) -> Permits:
        """The permits of a new request."""
        return Permits(self)

    def _load(self, nbytes: int, decode_seconds: float) -> Load:
        return Load(min(nbytes, self.max_bytes), decode_seconds if decode_seconds >= COSTLY_SECONDS else 0.0)

    def _try_take(self, load: Load) -> bool:
        if load.costly and (self._costly_queue or not self._may_decode(load)):
            return False
        if (self.images_waiting and self._next() is not None) or not self._fits(load):
            return False
        self._take(load)
        return True

    async def _wait(self, load: Load, *, begun: bool) -> None:
        queue = self._costly_queue if load.costly else self._cheap_queue
        most = self._max_images_waiting
        if self.images_waiting >= most:
            self._evict_newest(self._costly_queue, self._cheap_queue, begun=begun)
        elif load.costly and len(queue) >= max(most * COSTLY_SHARE, 1):
            self._evict_newest(queue, begun=begun)
        waiter = _Waiter(next(self._numbers), load, begun, asyncio.get_running_loop().create_future())
        queue.append(waiter)
        metrics.IMAGES_WAITING.inc()
        try:
            await waiter.admitted
        except asyncio.CancelledError:
            if waiter.admitted.done() and not waiter.admitted.cancelled() and waiter.admitted.exception() is None:
                self._give_back(load)  # admitted and cancelled at the same time
            raise
        finally:
            metrics.IMAGES_WAITING.dec()
            with contextlib.suppress(ValueError):  # it is in the queue only if it was cancelled
                queue.remove(waiter)
                self._admit()

    def _evict_newest(self, *queues: deque[_Waiter], begun: bool) -> None:
        """Evict the newest image of a request that has not begun; raises Overloaded if that is the new image itself.

        Otherwise a request that has begun would be left half done, and an earlier one would yield to a later one.
        """
        waiters = [waiter for queue in queues for waiter in queue if not waiter.begun]
        if not begun or not waiters:
            raise self._full()
        newest = max(waiters, key=lambda waiter: waiter.number)
        (self._costly_queue if newest.load.costly else self._cheap_queue).remove(newest)
        if not newest.admitted.done():
            newest.admitted.set_exception(self._full())

    def _full(self) -> Overloaded:
        value = self._max_images_waiting
        return Overloaded(
            f"{self.images_waiting} images are already waiting, the maximum; try again later.",
            limit="max_images_waiting",
            value=value,
        )

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
        return self._images < self.max_images and self._bytes + load.nbytes <= self.max_bytes

    def _may_decode(self, load: Load) -> bool:
        """Whether a costly image may join those in flight, because a decoder is idle or will be soon."""
        if not load.costly or not self._costly:
            return True
        nbytes = sum(each.nbytes for each in self._costly) + load.nbytes
        if nbytes > self.max_bytes * COSTLY_BYTES_SHARE or len(self._costly) >= self.max_images * COSTLY_SHARE:
            return False
        seconds = sum(each.decode_seconds for each in self._costly) + load.decode_seconds
        return len(self._costly) < self._decoders or seconds <= SECONDS_PER_DECODER * self._decoders

    def _take(self, load: Load) -> None:
        if load.costly:
            self._costly.append(load)
        self._images += 1
        self._bytes += load.nbytes
        metrics.IMAGES_IN_FLIGHT.inc()
        metrics.BYTES_IN_FLIGHT.inc(load.nbytes)

    def _give_back(self, load: Load) -> None:
        self._images -= 1
        metrics.IMAGES_IN_FLIGHT.dec()
        self._replace(load, _NOTHING)

    def _replace(self, before: Load, after: Load) -> None:
        """Replace the load of an image by a smaller one."""
        if before.costly:
            self._costly.remove(before)
        self._bytes -= before.nbytes - after.nbytes
        metrics.BYTES_IN_FLIGHT.dec(before.nbytes - after.nbytes)
        self._admit()

    def _admit(self) -> None:
        while self.images_waiting and (waiter := self._next()) is not None and self._fits(waiter.load):
            (self._costly_queue if waiter.load.costly else self._cheap_queue).popleft()
            if not waiter.admitted.done():
                self._take(waiter.load)
                waiter.admitted.set_result(None)
