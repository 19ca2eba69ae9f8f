"""Room that nobody needs just now, for work whose answer nobody waits for."""

from gateway.limits.admission import Admission

PART = 4
"""Such work has at most this part, one in so many, of each limit."""


class SpareCapacity:
    """Places for images where permits are free. They take no permit: whoever comes afterwards finds all of them.

    A place is given only while nobody waits and the permits that are free would do for all places together. So what is
    in flight in all exceeds the limits by a quarter at most, and only for as long as such work takes.
    """

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self.max_images = max(1, admission.max_images // PART)
        self._max_bytes = admission.max_bytes // PART
        self.images = 0
        """Images that have a place."""
        self.nbytes = 0
        """Bytes of the images that have a place."""

    def take(self, images: int, nbytes: int) -> "SpareLease | None":
        """A place for some images, of `nbytes` together, or None where there is none now."""
        images_in_all, bytes_in_all = self.images + images, self.nbytes + nbytes
        if images_in_all > self.max_images or bytes_in_all > self._max_bytes:
            return None
        if not self._admission.has_room(images_in_all, bytes_in_all):
            return None
        self.images, self.nbytes = images_in_all, bytes_in_all
        return SpareLease(self, images, nbytes)


class SpareLease:
    """Leave for some images to be in flight where there is room; released once, however often `release` is called."""

    __slots__ = ("_images", "_kept", "_leaving", "_nbytes", "_spare")

    def __init__(self, spare: SpareCapacity, images: int, nbytes: int) -> None:
        self._spare: SpareCapacity | None = spare
        self._images, self._nbytes = images, nbytes
        self._kept = self._leaving = False

    def keep(self) -> None:
        """Begin work that cannot be stopped: until it has ended (`settle`), the place stays taken."""
        self._kept = True

    def settle(self) -> None:
        """End such work."""
        self._kept = False
        if self._leaving:
            self.release()

    def release(self) -> None:
        """Give the place back, as soon as what cannot be stopped has ended."""
        self._leaving = True
        if self._spare is not None and not self._kept:
            spare, self._spare = self._spare, None
            spare.images -= self._images
            spare.nbytes -= self._nbytes
