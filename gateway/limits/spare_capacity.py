"""Capacity that no request needs at the moment, for shadow versions, whose results no client waits for."""

from gateway.limits.admission import Admission, Lease

PART = 4
"""Such work gets at most one in so many of each limit of the admission."""


class SpareCapacity:
    """Leases for images while permits are free. A lease takes no permit: requests that come later find all of them.

    A lease is given only while no image waits and the free permits would suffice for all leases together. So what is in
    flight exceeds the limits by a quarter at most, and only for as long as such work takes.
    """

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self.max_images = max(1, admission.max_images // PART)
        self._max_bytes = admission.max_bytes // PART
        self.images = 0
        """Images that have a lease."""
        self.nbytes = 0
        """Bytes of the images that have a lease."""

    def take(self, images: int, nbytes: int) -> "SpareLease | None":
        """A lease for some images, of `nbytes` together; None if there is no spare capacity."""
        images_in_all, bytes_in_all = self.images + images, self.nbytes + nbytes
        if images_in_all > self.max_images or bytes_in_all > self._max_bytes:
            return None
        if not self._admission.has_room(images_in_all, bytes_in_all):
            return None
        self.images, self.nbytes = images_in_all, bytes_in_all
        return SpareLease(self, images, nbytes)


class SpareLease(Lease):
    """Permission for some images to be in flight on spare capacity."""

    __slots__ = ("_images", "_nbytes", "_spare")

    def __init__(self, spare: SpareCapacity, images: int, nbytes: int) -> None:
        super().__init__()
        self._spare = spare
        self._images, self._nbytes = images, nbytes

    def _give_back(self) -> None:
        self._spare.images -= self._images
        self._spare.nbytes -= self._nbytes
