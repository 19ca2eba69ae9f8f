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
        super().__init__(seconds, most_seconds, client=client)
        self._now = now
        self._since = now()

    @property
    def spent_seconds(self) -> float:
        """Seconds charged so far, less what the stream has regained."""
        self._regain()
        return self._spent

    def check(self) -> None:
        """See Account.check."""
        self._regain()
        super().check()

    def charge(self, seconds: float) -> None:
        """See Account.charge."""
        self._regain()
        super().charge(seconds)

    def try_pay(self, seconds: float) -> bool:
        """See Account.try_pay."""
        self._regain()
        return super().try_pay(seconds)

    def add_image(self, nbytes: int = 0) -> None:
        """Do nothing: frames do not enlarge the account."""

    def add_slow_codec(self, nbytes: int) -> None:
        """Do nothing: frames do not enlarge the account."""

    def _regain(self) -> None:
        now = self._now()
        self._spent = max(self._spent - (now - self._since) * STREAM_SECONDS_PER_SECOND, 0.0)
        self._since = now

    def _overdrawn(self) -> TooCostly:
        return TooCostly(
            f"The stream's frames cost too much: {STREAM_SECONDS_PER_SECOND:g} s of processor time a second is "
            f"allowed, and {self._seconds:g} s (request_cpu_seconds) at once. Send fewer frames or smaller ones.",
            limit="request_cpu_seconds",
            value=self._seconds,
        )
