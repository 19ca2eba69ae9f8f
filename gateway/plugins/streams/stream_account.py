"""The processor time that decoding may take for one stream."""

import time
from collections.abc import Callable, Hashable

from gateway.errors import TooCostly
from gateway.limits.account import STREAM_SECONDS_PER_SECOND, Account


class StreamAccount(Account):
    """The processor time that the frames of one stream may take together.

    It begins with `seconds`, and regains STREAM_SECONDS_PER_SECOND, up to `seconds`; its frames do not enlarge it.
    """

    def __init__(
        self,
        seconds: float,
        most_seconds: float,
        *,
        client: Hashable = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._now, self._since = now, now()
        self._charged = 0.0
        super().__init__(seconds, most_seconds, client=client)

    @property
    def _spent(self) -> float:
        """Seconds charged so far, minus the regained ones."""
        now = self._now()
        self._charged = max(self._charged - (now - self._since) * STREAM_SECONDS_PER_SECOND, 0.0)
        self._since = now
        return self._charged

    @_spent.setter
    def _spent(self, seconds: float) -> None:
        self._charged = seconds

    def add_image(self, nbytes: int = 0) -> None:
        """Do nothing: frames do not enlarge the account."""

    def add_slow_codec(self, nbytes: int) -> None:
        """Do nothing: frames do not enlarge the account."""

    def _overdrawn(self) -> TooCostly:
        return TooCostly(
            f"The stream's frames cost too much: {STREAM_SECONDS_PER_SECOND:g} s of processor time a second is "
            f"allowed, and {self._seconds:g} s (request_cpu_seconds) at once. Send fewer frames or smaller ones.",
            limit="request_cpu_seconds",
            value=self._seconds,
        )
