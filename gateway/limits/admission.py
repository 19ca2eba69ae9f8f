"""Limits of images, their bytes and their decoding, in flight and waiting, and how API keys share them."""

import asyncio
import itertools
from collections import deque
from collections.abc import Collection, Iterable

from gateway import metrics
from gateway.errors import Overloaded
from gateway.limits.pools import Bound, Lease, admission

LOWEST_WEIGHT = 0.01
"""Weight of work with the lowest priority: while other images wait, it gets about one permit in a hundred."""


class FairShare:
    """A weight among all waiting images, and an optional limit of images in flight.

    Waiting images are numbered by start-time fair queueing (Goyal, Vin and Cheng, 1996): the images of one share follow
    each other at a distance of 1 / weight, so that shares with waiting images get permits in proportion to their
    weights. With one share for all, images are admitted in the order of arrival.
    """

    __slots__ = ("_distance", "_lowest", "_next", "bounds", "images", "waiting", "weight")

    def __init__(self, weight: float = 1.0, images: Bound | None = None, common: Bound | None = None) -> None:
        self.weight = weight
        self.images = images
        self.bounds: tuple[Bound, ...] = tuple(each for each in (images, common) if each is not None)
        """Limits of the images in flight: of this share, and of several together (`common`)."""
        self._lowest: FairShare | None = None
        self.waiting = 0
        """Images that wait for a permit."""
        self._distance = 1 / weight
        self._next = 0.0

    @property
    def full(self) -> bool:
        """Whether as many images as allowed are in flight."""
        return any(bound.free < 1 for bound in self.bounds)

    def lowest(self, common: Bound) -> "FairShare":
        """The share of the same client's work with the lowest priority; `common` bounds all such work."""
        if self._lowest is None:
            self._lowest = FairShare(self.weight * LOWEST_WEIGHT, self.images, common)
        return self._lowest

    def start(self, now: float) -> float:
        """Count one more waiting image; returns its place, at or after the place `now` of the last admitted image."""
        place = max(self._next, now)
        self._next = place + self._distance
        self.waiting += 1
        return place

    def end(self, *, admitted: bool) -> None:
        """Count one less; an image that leaves without a permit gives its place back."""
        self.waiting -= 1
        if not admitted:
            self._next -= self._distance

    def crowding(self, more: int = 0) -> float:
        """Waiting images and `more` by weight: when the queue is full, the most crowded share loses an image."""
        return (self.waiting + more) * self._distance


COSTLY_SECONDS = 0.05
"""An image that takes this long to decode is costly: it waits behind other costly images, and cheap ones pass it."""
SECONDS_PER_DECODER = 2.0
"""Seconds of decoding of costly images that may be in flight for each decoder."""
LOWEST_PART = 4
"""Images with the lowest priority get at most 1/LOWEST_PART of the permits."""
COSTLY_SHARE, COSTLY_BYTES_SHARE = 0.5, 0.75
"""The share of the images in flight and of the queue that costly images may take, and of the bytes in flight."""


class Permit(Lease):
    """Permission for one image to be in flight, or its place in the queue for one."""

    __slots__ = ("_holds", "_permits", "admitted", "begun", "decode_seconds", "nbytes", "place", "share")

    admitted: "asyncio.Future[Permit]"
    """In the queue: done when the image may be in flight; it fails when the image is evicted."""
    place: tuple[float, int]
    """Its place in the queue, and its number by arrival."""

    def __init__(self, permits: "Permits", nbytes: int, decode_seconds: float, *, begun: bool = False) -> None:
        self._permits, self.share = permits, permits.share
        self.begun = begun
        """Whether other images of the request were admitted already."""
        self.nbytes = min(nbytes, permits.admission.bytes.most)
        self.decode_seconds = decode_seconds if decode_seconds >= COSTLY_SECONDS else 0.0
        """Processor time to decode the image; 0 unless it is costly."""
        self._kept = self._released = self._holds = False

    def hold(self) -> "Permit":
        """Count the image as in flight."""
        permits, gate = self._permits, self._permits.admission
        self._holds = True
        gate.images.add(1)
        gate.bytes.add(self.nbytes)
        for bound in self.share.bounds:
            bound.add(1)
        if self.decode_seconds:
            gate.decoding[self] = None
        permits.held.add(self)
        return self

    def shrink(self, nbytes: int) -> None:
        """Give back what is no longer needed once the image is decoded: all but `nbytes`."""
        if not self._holds:
            return
        gate = self._permits.admission
        gate.decoding.pop(self, None)
        freed = max(self.nbytes - nbytes, 0)
        self.nbytes -= freed
        gate.bytes.add(-freed)
        gate.admit()  # a decoder may be idle, even if no byte was given back

    def release(self) -> None:
        """Let the next waiting image in, as soon as no uncancellable work runs; a second call does nothing."""
        permits = self._permits
        permits.held.discard(self)
        if permits.released is not None:
            permits.released.set()
        self._released = True
        if not self._kept:
            self._end()

    def _end(self) -> None:
        if not self._holds:
            return
        self._holds = False
        gate = self._permits.admission
        if self.decode_seconds:
            gate.decoding.pop(self, None)
        gate.images.add(-1)
        gate.bytes.add(-self.nbytes)
        for bound in self.share.bounds:
            bound.add(-1)
        if gate.waiting.held:
            gate.admit()


class Permits:
    """All permits of one request; when it ends, the rest is released, so that none can be lost."""

    __slots__ = ("admission", "held", "released", "share")

    def __init__(self, gate: "Admission", share: FairShare) -> None:
        self.admission = gate
        self.share = share
        self.held: set[Permit] = set()
        self.released: asyncio.Event | None = None
        """Set by each release while `wait_for_space` waits."""

    def close(self) -> None:
        """Release all."""
        while self.held:
            next(iter(self.held)).release()

    def try_acquire(self, nbytes: int, decode_seconds: float = 0.0) -> Permit | None:
        """A permit if the image fits now and no other image waits before it, else None.

        `decode_seconds` is the expected time to decode the image in the gateway. An image that exceeds a limit by
        itself fits while nothing else is in flight.
        """
        permit = Permit(self, nbytes, decode_seconds)
        return permit.hold() if self.admission.fits(permit) else None

    async def acquire(self, nbytes: int, decode_seconds: float = 0.0, *, begun: bool = False) -> Permit:
        """Wait until the image fits; raises Overloaded if the queue is full.

        With `begun`, other images of the request were admitted already. The queue then takes the image in any case and
        never evicts it, so that no request is left half done; `max_images_waiting` does not count it. Each request in
        progress has at most one such image.
        """
        permit = Permit(self, nbytes, decode_seconds, begun=begun)
        if self.admission.fits(permit):
            return permit.hold()
        return await self.admission.wait(permit)

    async def wait_for_space(self, most: int) -> None:
        """Wait until the request has fewer than `most` permits; one task at a time."""
        while len(self.held) >= most:
            self.released = asyncio.Event()
            await self.released.wait()
        self.released = None


Queues = dict[FairShare, deque[Permit]]
"""The waiting images of each share that has any, in the order of arrival."""


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
        self._begun_waiting = 0
        """Waiting images of requests that have had another image admitted: `max_images_waiting` does not limit them."""
        self.lowest = Bound("lowest_priority_images", max(1, max_images // LOWEST_PART))
        """Images in flight with the lowest priority."""
        self.max_wait_seconds = max_wait_seconds
        self._decoders = decoders
        self.decoding: dict[Permit, None] = {}
        """Costly images in flight that are not decoded yet."""
        self._numbers = itertools.count()
        self._everyone = FairShare()
        """The common share of all requests that have no other."""
        self._place = 0.0
        """The place of the last image that was admitted from a queue."""
        self._cheap_queues: Queues = {}
        self._costly_queues: Queues = {}

    def check(self, share: FairShare | None = None) -> None:
        """Raise Overloaded if the queue is full, and no other share has more than its part of it."""
        if self._is_full() and self._most_crowded(share or self._everyone, self._queues()) is None:
            raise self._full()

    def has_room(self, images: int, nbytes: int) -> bool:
        """Whether `images` and `nbytes` would fit now while no image waits; reserves nothing."""
        return images <= self.images.free and nbytes <= self.bytes.free and not self.waiting.held

    def permits(self, share: FairShare | None = None, *, lowest: bool = False) -> Permits:
        """The permits of a new request; with `lowest`, all other images are admitted before its own."""
        share = share or self._everyone
        return Permits(self, share.lowest(self.lowest) if lowest else share)

    def fits(self, image: Permit) -> bool:
        """Whether an image may be in flight now, and no other one waits before it."""
        images, in_flight, share = self.images, self.bytes, image.share
        if images.held >= images.most or image.nbytes > in_flight.most - in_flight.held:
            return False
        if share.bounds and share.full:
            return False
        if image.decode_seconds and (self._costly_queues or not self._may_decode(image)):
            return False
        return not self.waiting.held or self._next() is None

    async def wait(self, image: Permit) -> Permit:
        """Wait until an image may be in flight; raises Overloaded as `Permits.acquire`."""
        queues = self._queues_of(image)
        if not image.begun:
            most_costly = max(self.waiting.most * COSTLY_SHARE, 1)
            if self._is_full():
                self._make_room(image, self._queues())
            elif image.decode_seconds and len(_evictable(queues.values())) >= most_costly:
                self._make_room(image, queues.values())
        image.admitted = asyncio.get_running_loop().create_future()
        image.place = image.share.start(self._place), next(self._numbers)
        queues.setdefault(image.share, deque()).append(image)
        self.waiting.add(1)
        self._begun_waiting += image.begun
        try:
            return await admission(image.admitted, lambda: self._give_up(image))
        finally:
            del image.admitted  # its result is the image: they would be garbage that only a collection finds

    def admit(self) -> None:
        """Give permits to the images that fit now."""
        images, in_flight = self.images, self.bytes
        while self.waiting.held and (image := self._next()) is not None:
            if images.held >= images.most or image.nbytes > in_flight.most - in_flight.held:
                return
            self._place = max(self._place, image.place[0])
            self._dequeue(image, admitted=True)
            if not image.admitted.done():
                image.admitted.set_result(image.hold())

    def _give_up(self, image: Permit) -> None:
        if image in self._queues_of(image).get(image.share, ()):
            self._dequeue(image)
            self.admit()  # smaller images may have waited behind it

    def _dequeue(self, image: Permit, *, admitted: bool = False) -> None:
        queues = self._queues_of(image)
        queue = queues[image.share]
        queue.remove(image)
        if not queue:
            del queues[image.share]
        image.share.end(admitted=admitted)
        self.waiting.add(-1)
        self._begun_waiting -= image.begun

    def _queues_of(self, image: Permit) -> Queues:
        return self._costly_queues if image.decode_seconds else self._cheap_queues

    def _queues(self) -> list[deque[Permit]]:
        return [*self._cheap_queues.values(), *self._costly_queues.values()]

    def _is_full(self) -> bool:
        return self.waiting.held - self._begun_waiting >= self.waiting.most

    def _most_crowded(self, share: FairShare, queues: Iterable[deque[Permit]]) -> FairShare | None:
        """The most crowded share with an evictable image in some queues; None if it is `share`, or less crowded."""
        shares = dict.fromkeys(image.share for image in _evictable(queues))
        most = max(shares, key=FairShare.crowding, default=share)
        return most if most is not share and most.crowding() > share.crowding(1) else None

    def _make_room(self, image: Permit, queues: Collection[deque[Permit]]) -> None:
        """Evict the newest image of the most crowded share from some queues; raises Overloaded without such a share."""
        crowded = self._most_crowded(image.share, queues)
        candidates = [each for each in _evictable(queues) if each.share is crowded]
        newest = max(candidates, key=lambda each: each.place[1], default=None)
        if newest is None:
            raise self._full()
        self._dequeue(newest)
        if not newest.admitted.done():
            newest.admitted.set_exception(self._full())

    def _full(self) -> Overloaded:
        return self.waiting.full("{} images are already waiting, the maximum; try again later.")

    def _next(self) -> Permit | None:
        """The first image in the queue that waits neither for a decoder nor for another image of its share."""
        costly = _first(self._costly_queues)
        if costly is not None and not self._may_decode(costly):
            costly = None
        cheap = _first(self._cheap_queues)
        if costly is None or cheap is None:
            return costly or cheap
        return min(costly, cheap, key=lambda image: image.place)

    def _may_decode(self, image: Permit) -> bool:
        """Whether a costly image may join those in flight, because a decoder is idle or will be soon."""
        decoding = self.decoding
        if not image.decode_seconds or not decoding:
            return True
        nbytes = sum(each.nbytes for each in decoding) + image.nbytes
        if nbytes > self.bytes.most * COSTLY_BYTES_SHARE or len(decoding) >= self.images.most * COSTLY_SHARE:
            return False
        seconds = sum(each.decode_seconds for each in decoding) + image.decode_seconds
        return len(decoding) < self._decoders or seconds <= SECONDS_PER_DECODER * self._decoders


def _first(queues: Queues) -> Permit | None:
    """The first waiting image of the shares that may have another one in flight."""
    heads = (queue[0] for share, queue in queues.items() if not share.full)
    return min(heads, key=lambda image: image.place, default=None)


def _evictable(queues: Iterable[deque[Permit]]) -> list[Permit]:
    """The waiting images of requests that have had no other image admitted."""
    return [image for queue in queues for image in queue if not image.begun]
