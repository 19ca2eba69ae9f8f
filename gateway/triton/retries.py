"""Which failed calls to Triton are sent again, and how often."""

import asyncio
import random

from gateway import metrics
from gateway.errors import DeadlineExceeded, ModelUnavailable, TritonUnreachable
from gateway.inference.backend import Call

MAX_ATTEMPTS = 4
RETRY_PAUSE_SECONDS = (0.02, 0.1)
"""Between attempts at a lone Triton: random, so that retries of many calls are spread, and longer each time."""


class RetryBudget:
    """Limits retries, so that they do not overload a failing server.

    Each request earns a fraction of a retry, and each retry costs one; a reserve covers the loss of a server.
    """

    def __init__(self, earned: float = 0.2, reserve: float = 256.0) -> None:
        self._earned = earned
        self._reserve = reserve
        self._balance = reserve
        self.requests = 0
        """Requests since the last retry, which are not in the balance yet; the sender of a request adds it."""

    def withdraw(self) -> bool:
        """Whether a retry is allowed now; if so, it is paid for."""
        self._balance = min(self._reserve, self._balance + self.requests * self._earned)
        self.requests = 0
        if self._balance < 1:
            return False
        self._balance -= 1
        return True


class Retries(RetryBudget):
    """Decides on the retry of each failed call."""

    async def wait(
        self, error: TritonUnreachable | ModelUnavailable, call: Call, attempts: int, *, elsewhere: bool
    ) -> None:
        """Return when a call that has failed with `error` may be sent again; raises `error` if it may not.

        `elsewhere` is whether another Triton is ready, to which it is sent at once. Raises DeadlineExceeded.
        """
        if not elsewhere and (isinstance(error, ModelUnavailable) or attempts >= MAX_ATTEMPTS):
            raise error
        if not self.withdraw():
            raise error
        if not elsewhere:
            await asyncio.sleep(random.uniform(*RETRY_PAUSE_SECONDS) * attempts)  # noqa: S311  # no secret
        if call.deadline.passed:
            raise DeadlineExceeded from error
        metrics.RETRIES.inc()

    def count(self) -> None:
        """Pay for the retry of a call whose images are sent alone; raises ModelUnavailable if it is not allowed."""
        if not self.withdraw():
            raise ModelUnavailable
        metrics.RETRIES.inc()
