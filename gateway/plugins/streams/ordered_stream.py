"""A stream of one client: a few items are processed at a time, and their results are delivered in order."""

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from gateway.errors import GatewayError, StreamIdle
from gateway.inference.scope import Scope
from gateway.limits.pool_clients import WaitingClient
from gateway.metrics import STREAMS_STOPPED
from gateway.settings import STREAM_IDLE_SECONDS

IN_FLIGHT = 2
"""Items of one stream that are processed at once: one travels while the other is classified."""

Item = TypeVar("Item")
Message = TypeVar("Message")


class OrderedStream(WaitingClient, Generic[Item]):
    """Processes the items of one client, at most IN_FLIGHT at a time, and delivers the results in order.

    A subclass reads messages by `receive`, calls `arrived` for each item, waits for a `slot`, starts to process the
    item by `start`, and puts it in line by `enqueue`. `deliver` waits for the item's result and sends it. The stream
    ends with StreamIdle after STREAM_IDLE_SECONDS without an item.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._slots = asyncio.Semaphore(IN_FLIGHT)
        self._idle_limit_seconds = STREAM_IDLE_SECONDS
        self._scope = Scope()
        self._line: asyncio.Queue[Item | None] = asyncio.Queue()
        self._open = 0
        """Items that have arrived, and that are neither delivered nor dropped."""
        self._active_at = self._loop.time()
        """Time at which the last item arrived, or its result was delivered."""
        self._failure: Exception | None = None
        self._ended = asyncio.Event()

    @property
    def idle_seconds(self) -> float:
        """Time since the client sent an item or read a result; 0 while an item is in progress."""
        return max(self._without_items_seconds, self.unread_seconds)

    @property
    def _without_items_seconds(self) -> float:
        return 0.0 if self._open else self._loop.time() - self._active_at

    @property
    @abstractmethod
    def unread_seconds(self) -> float:
        """For how long the client has not read what was sent."""

    @abstractmethod
    async def deliver(self, item: Item) -> None:
        """Wait until an item is processed, and send its result; an exception ends the stream."""

    def evict(self, error: GatewayError) -> None:
        """Make `run` raise an error, now or when it is called."""
        self._fail(error)

    async def run(self, *work: Callable[[], Awaitable[None]]) -> None:
        """Run the stream's work until the last result is delivered; raises the first exception of any part.

        No task of the stream outlives this call.
        """
        async with self._scope:
            for each in (*work, self._deliver_all):
                self.start(each)
            await self._ended.wait()
        try:
            if self._failure is not None:
                raise self._failure
        finally:
            self._failure = None  # its traceback keeps the stream

    def start(self, work: Callable[..., Awaitable[None]], *arguments: object) -> None:
        """Do some of the stream's work in a task of its own; an exception ends the stream."""
        self._scope.start(self._guard(work, *arguments))

    async def receive(self, receive: Callable[[], Awaitable[Message]]) -> Message:
        """The client's next message; raises StreamIdle."""
        while True:
            left_seconds = self._idle_limit_seconds - self._without_items_seconds
            if left_seconds <= 0:
                STREAMS_STOPPED.labels("idle").inc()
                raise StreamIdle(
                    f"No frame came for {self._idle_limit_seconds:g} s.",
                    limit="stream_idle_seconds",
                    value=self._idle_limit_seconds,
                )
            try:
                async with asyncio.timeout(left_seconds):
                    return await receive()
            except TimeoutError:
                continue

    def arrived(self) -> None:
        """Count an item that the client has sent."""
        self._open += 1
        self._active_at = self._loop.time()

    def dropped(self) -> None:
        """Count an item that is not processed."""
        self._open -= 1

    async def slot(self) -> None:
        """Wait until one more item may be processed."""
        await self._slots.acquire()

    def enqueue(self, item: Item | None) -> None:
        """Deliver an item after those before it; None ends the stream after the last one."""
        self._line.put_nowait(item)

    async def _deliver_all(self) -> None:
        while (item := await self._line.get()) is not None:
            await self.deliver(item)
            self._open -= 1
            self._active_at = self._loop.time()
            self._slots.release()
        self._ended.set()

    async def _guard(self, work: Callable[..., Awaitable[None]], *arguments: object) -> None:
        try:
            await work(*arguments)
        except Exception as failure:  # raised again by `run`
            self._fail(failure)

    def _fail(self, failure: Exception) -> None:
        self._failure = self._failure or failure
        self._ended.set()
