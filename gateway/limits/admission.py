"""Limits of images, their bytes and their decoding, in flight and waiting, and how clients share them."""

import math
from collections.abc import Callable, Hashable

from gateway import metrics
from gateway.errors import Overloaded
from gateway.limits.bounds import Bound, FairQueue, Lease
from gateway.limits.caller import ANYONE, Caller

COSTLY_SECONDS = 0.05
"""An image that takes this long to decode is costly: it waits behind other costly images, and cheap ones pass it."""
SECONDS_PER_DECODER = 2.0
"""Seconds of decoding of costly images that may be in flight for each decoder; an image counts at most this much."""
COSTLY_SHARE, COSTLY_BYTES_SHARE = 0.5, 0.75
"""The share of the images in flight and of the queue that costly images may take, and of the bytes in flight."""
LOWEST_WEIGHT = 0.01
"""Factor of the weight of work with the lowest priority: while other images wait, it gets about one permit in a
hundred."""
LOWEST_PART = 4
"""Images with the lowest priority get at most 1/LOWEST_PART of the permits."""


class Admission(FairQueue):
    """Bounds the memory of a process: images, bytes and decoding in flight, of which each image holds a permit.

    Images are admitted in the order of arrival; cheap images pass costly ones that wait for a decoder. Callers take
    turns by their weights, and a caller that has as many images in flight as it may have delays no other.

    A request with a waiting image stops reading its body, so that it has one image in the queue however many files it
    sends, and requests take turns. `max_images_waiting` bounds the first images of requests. A later image always
    waits, so that no request is left half done.
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
        super().__init__(self.images, self.bytes)
        self.max_wait_seconds = max_wait_seconds
        self._waiting_first = Bound("max_images_waiting", max_images_waiting, None, metrics.IMAGES_WAITING_LIMIT)
        self._waiting_costly = Bound("costly_images_waiting", math.ceil(max_images_waiting * COSTLY_SHARE))
        self._lowest = Bound("lowest_priority_images", max(1, max_images // LOWEST_PART))
        # Costly images in flight that are not decoded yet.
        self._costly_images = Bound("costly_images", math.ceil(max_images * COSTLY_SHARE))
        self._costly_bytes = Bound("costly_bytes", math.ceil(max_bytes * COSTLY_BYTES_SHARE))
        self._costly_ms = Bound("costly_milliseconds", round(1e3 * SECONDS_PER_DECODER) * decoders)

    def check(self, caller: Caller = ANYONE) -> None:
        """Raise Overloaded if the queue is full, and no other caller has more than its part of it."""
        waiting = self._waiting_first
        if waiting.held >= waiting.most and self._most_crowding((caller, False), caller.weight, waiting) is None:
            raise self._full()

    def has_room(self, images: int, nbytes: int) -> bool:
        """Whether `images` and `nbytes` would fit now while no image waits; reserves nothing."""
        return images <= self.images.free and nbytes <= self.bytes.free and not self

    def permit(
        self,
        nbytes: int,
        decode_seconds: float = 0.0,
        caller: Caller = ANYONE,
        *,
        first: bool = True,
        lowest: bool = False,
        on_release: Callable[[Lease], None] | None = None,
    ) -> Lease:
        """The permit for an image, to be acquired; its `acquire` raises Overloaded if the queue is full.

        `decode_seconds` is the expected time to decode the image in the gateway. `first` is False if other images of
        the request were admitted already. With `lowest`, all other images are admitted before. An image that exceeds a
        limit by itself fits while nothing else is in flight.
        """
        amounts: dict[Bound, int] = {}
        if caller.images is not None:
            amounts[caller.images] = 1
        if lowest:
            amounts[self._lowest] = 1
        counted_in: tuple[Bound, ...] = (self._waiting_first,) if first else ()
        if decode_seconds >= COSTLY_SECONDS:
            amounts[self._costly_images] = 1
            amounts[self._costly_bytes] = min(nbytes, self._costly_bytes.most)
            amounts[self._costly_ms] = round(1e3 * min(decode_seconds, SECONDS_PER_DECODER))
            counted_in = (self._waiting_costly, *counted_in) if first else ()
        amounts[self.images] = 1
        amounts[self.bytes] = min(nbytes, self.bytes.most)
        weight = caller.weight * LOWEST_WEIGHT if lowest else caller.weight
        return Lease(self, amounts, None, (caller, lowest), weight, counted_in, on_release)

    def decoded(self, permit: Lease, nbytes: int) -> None:
        """Give back what the image of a permit no longer needs once it is decoded: all but `nbytes`."""
        permit.reduce({self.bytes: nbytes, self._costly_images: 0, self._costly_bytes: 0, self._costly_ms: 0})

    async def wait(self, lease: Lease) -> None:
        """Wait as in any queue; if it is full, the newest image of the most crowded caller is evicted.

        Raises Overloaded if no other caller has more than its part of the queue.
        """
        for bound in lease.counted_in:
            if bound.free < 1:
                evicted = self._most_crowding(lease.client, lease.weight, bound)
                if evicted is None:
                    raise self._full()
                self.evict(evicted, self._full())
        metrics.IMAGES_WAITING.inc()
        try:
            await super().wait(lease)
        finally:
            metrics.IMAGES_WAITING.dec()

    def _most_crowding(self, client: Hashable, weight: float, bound: Bound) -> Lease | None:
        """The newest image in a bound of the most crowded caller; None if that is `client`, or less crowded with it."""
        waiting = [each for each in self if bound in each.counted_in]
        crowding = {each.client: self.crowding(each.client, each.weight) for each in waiting}
        most = max(crowding, key=crowding.__getitem__, default=client)
        if most == client or crowding[most] <= self.crowding(client, weight, 1):
            return None
        return max((each for each in waiting if each.client == most), key=lambda each: each.number)

    def _full(self) -> Overloaded:
        return self._waiting_first.full("{} images are already waiting, the maximum; try again later.")
