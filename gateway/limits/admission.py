"""How many images, how many bytes of them, and how much decoding may be in flight and waiting at once."""

import asyncio
import itertools
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Self

from gateway import metrics
from gateway.errors import Overloaded
from gateway.limits.fair_share import FairShare
from gateway.limits.lease import Bound, Holding, admission

COSTLY_SECONDS = 0.05
"""An image that takes this long to decode is costly: it waits behind other costly images, and cheap ones pass it."""
SECONDS_PER_DECODER = 2.0
"""Seconds of decoding of costly images that may be in flight for each decoder."""
LOWEST_PART = 4
"""Images with the lowest priority get at most 1/LOWEST_PART of the permits."""
COSTLY_SHARE, COSTLY_BYTES_SHARE = 0.5, 0.75
"""The share of the images in flight and of the queue that costly images may take, and of the bytes in flight."""


class ImageCost(NamedTuple):
    """What one image takes while it is in flight: bytes, and processor time to decode it if it is costly."""

    nbytes: int
    decode_seconds: float = 0.0
    """0 unless the image is costly."""


class Permit(Holding):
    """Permission for one image to be in flight."""

    __slots__ = ("_ended", "_nbytes", "_permits", "load")

    def __init__(self, permits: "Permits", load: ImageCost) -> None:
        self._permits = permits
        self.load = load
        self._nbytes = load.nbytes
        self._kept = self._released = self._ended = False
        gate = permits.admission
        gate.images.add(1)
        gate.bytes.add(load.nbytes)
        for bound in permits.share.bounds:
            bound.add(1)
        if load.decode_seconds:
            gate.decoding[self] = None
        permits.held.add(self)

    def shrink(self, nbytes: int) -> None:
        """Give back what is no longer needed once the image is decoded: all but `nbytes`."""
        if self._ended:
            return
        gate = self._permits.admission
        gate.decoding.pop(self, None)
        freed = max(self._nbytes - nbytes, 0)
        self._nbytes -= freed
        gate.bytes.add(-freed)
        gate.admit()  # a decoder may be idle, even if no byte was given back

    def release(self) -> None:
        """Let the next waiting image in, as soon as no uncancellable work runs; a second call does nothing."""
        permits = self._permits
        permits.held.discard(self)
        if permits.released is not None:
            permits.released.set()
        super().release()

    def _end(self) -> None:
        if self._ended:
            return
        self._ended = True
        permits, gate = self._permits, self._permits.admission
        if self.load.decode_seconds:
            gate.decoding.pop(self, None)
        gate.images.add(-1)
        gate.bytes.add(-self._nbytes)
        for bound in permits.share.bounds:
            bound.add(-1)
        if gate.waiting.held:
            gate.admit()


class Permits:
    """All permits of one request; those that are left when it ends are released, so that none can be lost."""

    __slots__ = ("admission", "held", "released", "share")

    def __init__(self, gate: "Admission", share: FairShare) -> None:
        self.admission = gate
        self.share = share
        self.held: set[Permit] = set()
        self.released: asyncio.Event | None = None
        """Set by each release while `wait_for_space` waits."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release all."""
        while self.held:
            next(iter(self.held)).release()

    def try_acquire(self, nbytes: int, decode_seconds: float = 0.0) -> Permit | None:
        """A permit if the image fits now and no other image waits before it, else None.

        `decode_seconds` is the expected time to decode the image in the gateway. An image that exceeds a limit by
        itself fits while nothing else is in flight.
        """
        load = self.admission.fitting(nbytes, decode_seconds, self.share)
        return None if load is None else Permit(self, load)

    async def acquire(self, nbytes: int, decode_seconds: float = 0.0, *, begun: bool = False) -> Permit:
        """Wait until the image fits; raises Overloaded if the queue is full.

        With `begun`, other images of the request were admitted already; then it may evict an image of a request of
        which none was.
        """
        permit = self.try_acquire(nbytes, decode_seconds)
        if permit is not None:
            return permit
        return await self.admission.wait(self, self.admission.load_of(nbytes, decode_seconds), begun=begun)

    async def wait_for_space(self, most: int) -> None:
        """Wait until the request has fewer than `most` permits; one task at a time."""
        while len(self.held) >= most:
            self.released = asyncio.Event()
            await self.released.wait()
        self.released = None


@dataclass(eq=False, slots=True)
class _Waiter:
    """An image in the queue: `admitted` is done when it has a permit, and fails when it is evicted."""

    place: tuple[float, int]
    """Its place in the queue, and its number by arrival."""
    permits: Permits
    load: ImageCost
    begun: bool
    admitted: "asyncio.Future[Permit]"

    @property
    def share(self) -> FairShare:
        """The share of the request."""
        return self.permits.share


class Admission:
    """Admits images in the order of arrival; cheap images pass costly ones that wait for a decoder.

    Requests of several shares alternate by their weights instead (see FairShare), and a share that has as many images
    in flight as it may have delays no other. A request with a waiting image stops reading its body, so that it has one
    image in the queue however many files it sends, and requests alternate.
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
        self.lowest = Bound("lowest_priority_images", max(1, max_images // LOWEST_PART))
        """Images in flight with the lowest priority."""
        self.max_wait_seconds = max_wait_seconds
        self._decoders = decoders
        self.decoding: dict[Permit, None] = {}
        """Costly images in flight that are not decoded yet."""
        self._numbers = itertools.count()
        self._everyone = FairShare()
        """The share of all requests without one of their own."""
        self._place = 0.0
        """The place of the last image that was admitted from a queue."""
        self._cheap_queues: Queues = {}
        self._costly_queues: Queues = {}

    def check(self, share: FairShare | None = None) -> None:
        """Raise Overloaded if the queue is full, and no other share has more than its part of it."""
        waiting = self.waiting
        if waiting.held >= waiting.most and self._most_crowded(share or self._everyone, self._queues()) is None:
            raise self._full()

    def has_room(self, images: int, nbytes: int) -> bool:
        """Whether `images` and `nbytes` would fit now while no image waits; reserves nothing."""
        return images <= self.images.free and nbytes <= self.bytes.free and not self.waiting.held

    def permits(self, share: FairShare | None = None, *, lowest: bool = False) -> Permits:
        """The permits of a new request; with `lowest`, all other images are admitted before its own."""
        share = share or self._everyone
        return Permits(self, share.lowest(self.lowest) if lowest else share)

    def load_of(self, nbytes: int, decode_seconds: float) -> ImageCost:
        """What an image takes."""
        return ImageCost(min(nbytes, self.bytes.most), decode_seconds if decode_seconds >= COSTLY_SECONDS else 0.0)

    def fitting(self, nbytes: int, decode_seconds: float, share: FairShare) -> ImageCost | None:
        """What an image takes that fits now, while no other image waits before it; None if it does not fit."""
        if share.bounds and share.full:
            return None
        load = self.load_of(nbytes, decode_seconds)
        if not self._fits(load):
            return None
        if load.decode_seconds and (self._costly_queues or not self._may_decode(load)):
            return None
        return None if self.waiting.held and self._next() is not None else load

    async def wait(self, permits: Permits, load: ImageCost, *, begun: bool) -> Permit:
        """Wait for a permit; raises Overloaded if the queue is full."""
        if self.waiting.free <= 0:
            self._make_room(permits.share, self._queues(), begun=begun)
        elif load.decode_seconds and _length(self._costly_queues.values()) >= max(self.waiting.most * COSTLY_SHARE, 1):
            self._make_room(permits.share, list(self._costly_queues.values()), begun=begun)
        admitted: asyncio.Future[Permit] = asyncio.get_running_loop().create_future()
        place = permits.share.start(self._place), next(self._numbers)
        waiter = _Waiter(place, permits, load, begun, admitted)
        queues = self._costly_queues if load.decode_seconds else self._cheap_queues
        queues.setdefault(permits.share, deque()).append(waiter)
        self.waiting.add(1)
        return await admission(admitted, lambda: self._give_up(waiter))

    def admit(self) -> None:
        """Give permits to the images that fit now."""
        while self.waiting.held and (waiter := self._next()) is not None and self._fits(waiter.load):
            self._place = max(self._place, waiter.place[0])
            self._dequeue(waiter, admitted=True)
            if not waiter.admitted.done():
                waiter.admitted.set_result(Permit(waiter.permits, waiter.load))

    def _give_up(self, waiter: _Waiter) -> None:
        queues = self._costly_queues if waiter.load.decode_seconds else self._cheap_queues
        if waiter in queues.get(waiter.share, ()):
            self._dequeue(waiter)
            self.admit()  # smaller images may have waited behind it

    def _dequeue(self, waiter: _Waiter, *, admitted: bool = False) -> None:
        queues = self._costly_queues if waiter.load.decode_seconds else self._cheap_queues
        queue = queues[waiter.share]
        queue.remove(waiter)
        if not queue:
            del queues[waiter.share]
        waiter.share.end(admitted=admitted)
        self.waiting.add(-1)

    def _queues(self) -> list[deque[_Waiter]]:
        return [*self._cheap_queues.values(), *self._costly_queues.values()]

    def _most_crowded(self, share: FairShare, queues: Iterable[deque[_Waiter]]) -> FairShare | None:
        """The share with the most images in some queues for its weight; None if another one of `share` has more."""
        shares = dict.fromkeys(queue[0].share for queue in queues)
        most = max(shares, key=FairShare.crowding, default=share)
        return most if most is not share and most.crowding() > share.crowding(1) else None

    def _make_room(self, share: FairShare, queues: list[deque[_Waiter]], *, begun: bool) -> None:
        """Evict an image from some queues for one of a request with this share; raises Overloaded if none may be.

        The newest image of the most crowded share is evicted, one of a request that has not begun if there is any.
        Within a share only such an image is evicted, and only for one of a request that has begun: otherwise a request
        that has begun would be left half done, and a later request would evict an earlier one.
        """
        crowded = self._most_crowded(share, queues)
        candidates = [waiter for queue in queues for waiter in queue if waiter.share is (crowded or share)]
        waiters = [waiter for waiter in candidates if not waiter.begun]
        if crowded is not None:
            waiters = waiters or candidates
        elif not begun:
            waiters = []
        newest = max(waiters, key=lambda waiter: waiter.place[1], default=None)
        if newest is None:
            raise self._full()
        self._dequeue(newest)
        if not newest.admitted.done():
            newest.admitted.set_exception(self._full())

    def _full(self) -> Overloaded:
        return self.waiting.full("{} images are already waiting, the maximum; try again later.")

    def _next(self) -> _Waiter | None:
        """The first image in the queue that waits neither for a decoder nor for another image of its share."""
        costly = _first(self._costly_queues)
        if costly is not None and not self._may_decode(costly.load):
            costly = None
        cheap = _first(self._cheap_queues)
        if costly is None or cheap is None:
            return costly or cheap
        return min(costly, cheap, key=lambda waiter: waiter.place)

    def _fits(self, load: ImageCost) -> bool:
        images, in_flight = self.images, self.bytes
        return images.held < images.most and load.nbytes <= in_flight.most - in_flight.held

    def _may_decode(self, load: ImageCost) -> bool:
        """Whether a costly image may join those in flight, because a decoder is idle or will be soon."""
        decoding = [permit.load for permit in self.decoding]
        if not load.decode_seconds or not decoding:
            return True
        nbytes = sum(each.nbytes for each in decoding) + load.nbytes
        if nbytes > self.bytes.most * COSTLY_BYTES_SHARE or len(decoding) >= self.images.most * COSTLY_SHARE:
            return False
        seconds = sum(each.decode_seconds for each in decoding) + load.decode_seconds
        return len(decoding) < self._decoders or seconds <= SECONDS_PER_DECODER * self._decoders


Queues = dict[FairShare, deque[_Waiter]]
"""The waiting images of each share that has any, in the order of arrival."""


def _first(queues: Queues) -> _Waiter | None:
    """The first waiting image of the shares that may have another one in flight."""
    heads = (queue[0] for share, queue in queues.items() if not share.full)
    return min(heads, key=lambda waiter: waiter.place, default=None)


def _length(queues: Iterable[deque[_Waiter]]) -> int:
    return sum(map(len, queues))
