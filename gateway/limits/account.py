"""The processor time that decoding may take for one request or stream."""

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager

from gateway.errors import TooCostly

SECONDS_PER_IMAGE = 0.005
"""Seconds that each file, and each frame with a result, adds to its request's account."""
SECONDS_PER_MEGABYTE = 0.4
"""Seconds that each 1,000,000 bytes of a file add: several times the cost of photographs."""
SECONDS_PER_MEGABYTE_OF_SLOW_CODECS = 2.0
STREAM_SECONDS_PER_SECOND = 1.0
"""Seconds that a stream's account gains each second: thirty frames of two megapixels cost three quarters of it."""


class Account:
    """The processor time that the images of one request may take together, so that none can keep the decoders busy.

    It begins with `seconds`, and grows with each image. The time of a decode is reserved before it is spent. What has
    been spent never exceeds what was allowed by more than `most_seconds`, the most that one image may take. Decoders
    alternate between the accounts of different clients.

    The account of a stream does not grow with its frames, and regains time instead, up to `seconds`.
    """

    def __init__(
        self, seconds: float, most_seconds: float, *, client: Hashable = None, is_stream: bool = False
    ) -> None:
        self.client = client
        self._is_stream = is_stream
        self._seconds = seconds
        self._most_seconds = most_seconds
        self._allowed = seconds
        self._open = 0
        self.spent_seconds = 0.0
        """Seconds spent so far, minus the regained ones of a stream."""
        self._reserved = self._lent = 0.0
        self._given_back = asyncio.Event()
        """Set when a decode has ended, while others wait for its time."""

    def add_image(self, nbytes: int = 0) -> None:
        """Allow the time of one more file of `nbytes`, or of one more frame."""
        if not self._is_stream:
            self._allowed += SECONDS_PER_IMAGE + nbytes / 1e6 * SECONDS_PER_MEGABYTE

    def add_slow_codec(self, nbytes: int) -> None:
        """Allow the additional time that a file in a slow codec needs."""
        if not self._is_stream:
            self._allowed += nbytes / 1e6 * (SECONDS_PER_MEGABYTE_OF_SLOW_CODECS - SECONDS_PER_MEGABYTE)

    def regain(self, stream_seconds: float) -> None:
        """Give back time that was spent, as a part of the stream has lasted `stream_seconds`."""
        self.spent_seconds = max(self.spent_seconds - stream_seconds * STREAM_SECONDS_PER_SECOND, 0.0)

    def check(self) -> None:
        """Raise TooCostly if everything is spent."""
        if self.spent_seconds >= self._allowed:
            raise self._overdrawn()

    def spend(self, seconds: float) -> None:
        """Count time that is spent already."""
        self.spent_seconds += seconds

    def try_pay(self, seconds: float) -> bool:
        """Count time that will be spent elsewhere, if it is free now."""
        if seconds > self._allowed - self.spent_seconds - self._reserved:
            return False
        self.spent_seconds += seconds
        return True

    async def pay(self, seconds: float) -> None:
        """Count time that will be spent elsewhere, once decodes have given back enough; raises TooCostly."""
        await self._affordable(seconds)
        self.spent_seconds += seconds

    @asynccontextmanager
    async def reserve(self, seconds: float, most_seconds: float) -> AsyncIterator[float]:
        """Reserve time for a decode that should take `seconds`; returns how long it may take, up to `most_seconds`.

        The decode is spent inside the context. Waits until other decodes of the same account have given back enough;
        raises TooCostly when nothing is left.
        """
        reserved = min(seconds, most_seconds, self._most_seconds)
        await self._affordable(reserved)
        self._open += 1
        self._reserved += reserved
        lent = min(most_seconds, self._most_seconds) - reserved
        # Half of the overdraft, so that decodes that begin later get some of it as well.
        lent = max(min(lent, (self._overdraft() - self._lent) / 2), 0.0)
        self._lent += lent
        try:
            yield reserved + lent
        finally:
            self._open -= 1
            self._reserved, self._lent = (self._reserved - reserved, self._lent - lent) if self._open else (0.0, 0.0)
            self._given_back.set()

    async def _affordable(self, seconds: float) -> None:
        """Wait until `seconds` are free; raises TooCostly once no decode is left that could release any."""
        while (left := self._allowed - self.spent_seconds - self._reserved) < seconds:
            if not self._open:
                if left > 0:
                    return
                raise self._overdrawn()
            self._given_back.clear()
            await self._given_back.wait()

    def _overdraft(self) -> float:
        """Seconds that may still be spent beyond the allowance."""
        beyond = self.spent_seconds + self._reserved - self._allowed
        return self._most_seconds - max(beyond, 0.0)

    def _overdrawn(self) -> TooCostly:
        if self._is_stream:
            message = (
                f"The stream's frames cost too much: {STREAM_SECONDS_PER_SECOND:g} s of processor time a second is "
                f"allowed, and {self._seconds:g} s (request_cpu_seconds) at once. Send fewer frames or smaller ones."
            )
        else:
            message = (
                f"The request's images up to this one have taken the {self._allowed:.2f} s of processor time that they "
                f"may take: {self._seconds:g} s (request_cpu_seconds), and more with each image and each byte. Send "
                "fewer images in a request, or smaller ones."
            )
        return TooCostly(message, limit="request_cpu_seconds", value=self._seconds)
