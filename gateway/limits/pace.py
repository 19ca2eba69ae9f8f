"""How fast a client sends its body."""

import math
from collections.abc import Callable

RECENT_SECONDS = 5.0
"""How far back the speed looks: what came this long ago counts a third (1/e) of what comes now."""
_LEAST_SECONDS = 0.1
"""A client that has just begun is not judged by less than this."""


class Pace:
    """The speed of one upload. Only the time counts in which the gateway waits for the client.

    A client has `grace_seconds` to spare. Waiting uses them up, and each byte earns back 1 / `min_bytes_per_second`, so
    that a client may pause, but not be slower than that for long. `now` is a clock in seconds.
    """

    def __init__(self, *, min_bytes_per_second: float, grace_seconds: float, now: Callable[[], float]) -> None:
        self._least = min_bytes_per_second
        self._grace_seconds = self._spare_seconds = grace_seconds
        self._now = now
        self._waiting_since: float | None = None
        self._recent_bytes = 0.0  # weighted: the newest by 1, older ones by less
        self._waited_seconds = 0.0

    @property
    def spare_seconds(self) -> float:
        """How long the gateway may wait for the next byte before the client is too slow."""
        return self._spare_seconds - self._waiting_seconds

    @property
    def waits(self) -> bool:
        """Whether it is the client's turn."""
        return self._waiting_since is not None

    @property
    def bytes_per_second(self) -> float:
        """The speed of late."""
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
        self._waiting_since = self._now()
        return self._spare_seconds

    def receive(self, nbytes: int) -> None:
        """The client has sent `nbytes`: stop waiting."""
        seconds, self._waiting_since = self._waiting_seconds, None
        self._waited_seconds += seconds
        self._recent_bytes = self._recent_bytes * math.exp(-seconds / RECENT_SECONDS) + nbytes
        self._spare_seconds = min(self._grace_seconds, self._spare_seconds - seconds + nbytes / self._least)

    @property
    def _waiting_seconds(self) -> float:
        return 0.0 if self._waiting_since is None else self._now() - self._waiting_since
