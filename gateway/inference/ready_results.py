"""The queue of one request's results that the client has not read yet."""

import asyncio

from gateway.inference.request_spec import Result

MAX_UNREAD_PREDICTIONS = 10_000
"""Unread predictions above which a request stops reading uploads."""


class ReadyResults:
    """A queue with backpressure: a client may keep sending without reading its results."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Result | None] = asyncio.Queue()
        self._predictions = 0
        self._taken = asyncio.Event()

    def put(self, result: Result) -> None:
        """Add a result; never blocks, so results of images in progress may exceed the limit."""
        self._predictions += result.extent
        self._queue.put_nowait(result)

    def end(self) -> None:
        """Mark the end of the results."""
        self._queue.put_nowait(None)

    async def take(self) -> Result | None:
        """The next result, or None at the end."""
        result = await self._queue.get()
        if result is not None:
            self._predictions -= result.extent
            self._taken.set()
        return result

    async def fewer_than_too_many(self) -> None:
        """Wait while more than MAX_UNREAD_PREDICTIONS are in the queue."""
        while self._predictions > MAX_UNREAD_PREDICTIONS:
            self._taken.clear()
            await self._taken.wait()
