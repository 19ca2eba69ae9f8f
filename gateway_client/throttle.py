"""How many requests are out at once: more while all goes well, half as many when the service has too much to do."""

import asyncio


class Throttle:
    """Additive increase, multiplicative decrease, as TCP does (RFC 5681); begins with `most`."""

    def __init__(self, most: int) -> None:
        self.most = max(1, most)
        self.limit = float(self.most)
        self._out = 0
        self._changed = asyncio.Event()

    async def acquire(self) -> None:
        """Wait for a place."""
        while self._out >= int(self.limit):
            self._changed.clear()
            await self._changed.wait()
        self._out += 1

    def release(self) -> None:
        """Give a place back."""
        self._out -= 1
        self._changed.set()

    def succeeded(self) -> None:
        """A request went through."""
        self.limit = min(float(self.most), self.limit + 1 / self.limit)
        self._changed.set()

    def refused(self) -> None:
        """The service had too much to do."""
        self.limit = max(1.0, self.limit / 2)
