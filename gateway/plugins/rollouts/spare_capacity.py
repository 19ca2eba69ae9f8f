"""Capacity that no request needs at the moment, for shadow versions, whose results no client waits for."""

from gateway.limits.admission import Admission
from gateway.limits.lease import Bound, Lease

PART = 4
"""Shadow versions get at most 1/PART of each limit of the admission."""


class SpareCapacity:
    """Leases for images while permits are free. A lease takes no permit: requests that come later find all of them.

    A lease is given only while no image waits and the free permits would suffice for all leases together. So what is in
    flight exceeds the limits by a quarter at most, and only for as long as such work takes.
    """

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self.images = Bound("spare_images", max(1, admission.images.most // PART))
        self.bytes = Bound("spare_bytes", admission.bytes.most // PART)

    def take(self, images: int, nbytes: int) -> Lease | None:
        """A lease for some images, of `nbytes` together; None if there is no spare capacity."""
        if images > self.images.free or nbytes > self.bytes.free:
            return None
        if not self._admission.has_room(self.images.held + images, self.bytes.held + nbytes):
            return None
        return Lease((self.images, self.bytes), (images, nbytes))
