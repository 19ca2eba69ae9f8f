"""The results of a request that its client has not read yet."""

import asyncio

from gateway.inference.result import Result

MAX_UNREAD_PREDICTIONS = 10_000
"""Unread predictions above which a request stops reading uploads."""


class ReadyResults:
    """A queue with backpressure: a client may keep sending without reading its results."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[tuple[Result | None, int]] = asyncio.Queue()
        """The results with their sizes in predictions."""
        self._predictions = 0
        self._taken = asyncio.Event()

    @property
    def full(self) -> bool:
        """Whether more than MAX_UNREAD_PREDICTIONS are in the queue."""
        return self._predictions > MAX_UNREAD_PREDICTIONS

    def put(self, result: Result) -> None:
        """Add a result; never blocks, so results of images in progress may exceed the limit."""
        predictions = result.extent
        self._predictions += predictions
        self._queue.put_nowait((result, predictions))

    def end(self) -> None:
        """Mark the end of the results."""
        self._queue.put_nowait((None, 0))

    async def take(self) -> Result | None:
        """The next result, or None at the end."""
        result, predictions = await self._queue.get()
        self._predictions -= predictions
        self._taken.set()
        return result

    async def wait_for_space(self) -> None:
        """Wait while the queue is full."""
        while self.full:
            self._taken.clear()
            await self._taken.wait()
