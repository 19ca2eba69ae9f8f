"""The speed at which a client sends its body."""

import math
from collections.abc import Callable

RECENT_SECONDS = 5.0
"""Time constant of the speed: bytes that arrived this long ago have a weight of 1/e."""
_LEAST_SECONDS = 0.1
"""Shortest time over which a speed is measured: a client is not judged by its first bytes."""


class Pace:
    """The speed of one upload. Only the time in which the gateway waits for the client counts.

    A client has `grace_seconds` to spare. Waiting uses them up, and each byte restores 1 / `min_bytes_per_second`
    seconds: a client may pause, but not be slower for long. `now` is a clock in seconds.
    """

    def __init__(self, *, min_bytes_per_second: float, grace_seconds: float, now: Callable[[], float]) -> None:
        self._least = min_bytes_per_second
        self._grace_seconds = self._spare_seconds = grace_seconds
        self._now = now
        self.waiting_since: float | None = None
        """Since when the gateway waits for the client; None if it does not."""
        self._recent_bytes = 0.0  # weighted: the newest by 1, older ones by less
        self._waited_seconds = 0.0

    @property
    def spare_seconds(self) -> float:
        """How long the gateway may wait for the next byte before the client is too slow."""
        return self._spare_seconds - self._waiting_seconds

    @property
    def is_idle(self) -> bool:
        """Whether the gateway waits for the client."""
        return self.waiting_since is not None

    @property
    def bytes_per_second(self) -> float:
        """Recent upload speed in bytes/s, exponentially weighted."""
        waiting_seconds = self._waiting_seconds
        age_seconds = max(self._waited_seconds + waiting_seconds, _LEAST_SECONDS)
        weight = RECENT_SECONDS * -math.expm1(-age_seconds / RECENT_SECONDS)
        return self._recent_bytes * math.exp(-waiting_seconds / RECENT_SECONDS) / weight

    @property
    def is_slow(self) -> bool:
        """Whether it is slower than `min_bytes_per_second`."""
        return self.bytes_per_second < self._least

    def wait(self) -> float:
        """Begin to wait for the client; returns `spare_seconds`."""
        self.waiting_since = self._now()
        return self._spare_seconds

    def receive(self, nbytes: int) -> None:
        """The client has sent `nbytes`: stop waiting."""
        seconds = 0.0
        if self.waiting_since is not None:
            seconds, self.waiting_since = self._now() - self.waiting_since, None
            self._waited_seconds += seconds
            self._recent_bytes *= math.exp(-seconds / RECENT_SECONDS)
        self._recent_bytes += nbytes
        self._spare_seconds = min(self._grace_seconds, self._spare_seconds - seconds + nbytes / self._least)

    @property
    def _waiting_seconds(self) -> float:
        return 0.0 if self.waiting_since is None else self._now() - self.waiting_since
