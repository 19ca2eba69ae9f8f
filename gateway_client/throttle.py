"""The number of concurrent requests: it grows with successes and is halved when the service is overloaded."""

import asyncio


class Throttle:
    """Additive increase, multiplicative decrease, as TCP does (RFC 5681); starts at `most`."""

    def __init__(self, most: int) -> None:
        self.most = max(1, most)
        self.limit = float(self.most)
        self._out = 0
        self._changed = asyncio.Event()

    async def acquire(self) -> None:
        """Wait for a slot."""
        while self._out >= int(self.limit):
            self._changed.clear()
            await self._changed.wait()
        self._out += 1

    def release(self) -> None:
        """Return a slot."""
        self._out -= 1
        self._changed.set()

    def succeeded(self) -> None:
        """Count a successful request: the limit grows."""
        self.limit = min(float(self.most), self.limit + 1 / self.limit)
        self._changed.set()

    def refused(self) -> None:
        """Count a refusal by an overloaded service: the limit is halved."""
        self.limit = max(1.0, self.limit / 2)
