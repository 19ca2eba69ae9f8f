"""The part of the admission that the requests of one API key get while images wait."""

from gateway.limits.lease import Bound

LOWEST_WEIGHT = 0.01
"""Weight of work with the lowest priority: while other images wait, it gets about one permit in a hundred."""


class FairShare:
    """A weight among all that wait, and the most images in flight, if there is one.

    Waiting images are numbered by start-time fair queueing (Goyal, Vin and Cheng, 1996): the images of one share follow
    each other at a distance of 1 / weight, so that shares with waiting images get permits in proportion to their
    weights. With one share for all, the order is that of arrival.
    """

    __slots__ = ("_distance", "_lowest", "_next", "bounds", "images", "waiting", "weight")

    def __init__(self, weight: float = 1.0, images: Bound | None = None, common: Bound | None = None) -> None:
        self.weight = weight
        self.images = images
        self.bounds: tuple[Bound, ...] = tuple(each for each in (images, common) if each is not None)
        """What bounds the images in flight: of this share, and of several together (`common`)."""
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
        """Count one more waiting image; returns its place, which is not before the place `now` of the last admitted."""
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
