"""The results of one request that are ready and have not been taken yet."""

import asyncio

from gateway.inference.request_spec import Result

MAX_UNREAD_PREDICTIONS = 10_000
"""While a client has more of them to read, its request reads no further."""


class ReadyResults:
    """A queue that says when too much is in it: a client may send for long and read nothing."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Result | None] = asyncio.Queue()
        self._predictions = 0
        self._taken = asyncio.Event()

    def put(self, result: Result) -> None:
        """Add a result; what is in work when there is enough still comes in."""
        self._predictions += result.extent
        self._queue.put_nowait(result)

    def end(self) -> None:
        """No more will come."""
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
