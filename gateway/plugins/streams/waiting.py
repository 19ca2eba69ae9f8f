"""The bounded queue of one stream's frames: if it is full, the oldest frame is dropped, or the client waits."""

import asyncio
from collections import deque
from dataclasses import dataclass, field

from gateway.errors import Overloaded
from gateway.inference.result import Result
from gateway.limits.pools import PoolLease
from gateway.plugins.streams.options import Drop, StreamParameters

FRAMES_WAITING = 2
"""Frames of one stream that may wait: with more, a camera's answers would be older."""


@dataclass(slots=True)
class StreamFrame:
    """A frame in progress, with the parameters that applied when it arrived."""

    number: int
    data: bytes = field(repr=False)
    parameters: StreamParameters
    came_at: float
    result: "asyncio.Future[Result | Exception]"


class WaitingFrames:
    """A queue of at most FRAMES_WAITING frames; `buffer` counts their bytes until the frames are admitted."""

    def __init__(self, buffer: PoolLease) -> None:
        self._buffer = buffer
        self._frames: deque[StreamFrame] = deque()
        self._pending_bytes = 0
        """Bytes of frames that have left the queue but are not admitted, or wait to enter it."""
        self._arrived, self._removed = asyncio.Event(), asyncio.Event()
        self._ended = False

    async def put(self, frame: StreamFrame) -> int:
        """Add a frame to the queue; if it is full, drop the oldest frame, or wait if the client forbids drops.

        Returns how many frames were dropped.
        """
        if frame.parameters.drop is Drop.NEVER and len(self._frames) >= FRAMES_WAITING:
            await self._wait_until_not_full(frame)
        dropped = 0
        while len(self._frames) >= FRAMES_WAITING:
            self._frames.popleft()
            dropped += 1
        self._frames.append(frame)
        try:
            self._count_bytes()
        except Overloaded:
            # The upload buffer is full: keep only the newest frame, which matters most for a camera.
            while len(self._frames) > 1:
                self._frames.popleft()
                dropped += 1
            try:
                self._count_bytes()
            except Overloaded:
                self._frames.popleft()
                dropped += 1
        self._arrived.set()
        return dropped

    def end(self) -> None:
        """Signal that no more frames arrive."""
        self._ended = True
        self._arrived.set()

    async def next(self) -> StreamFrame | None:
        """The oldest frame, whose bytes are counted until `passed_on`; None once the queue is empty and ended."""
        while not self._frames:
            if self._ended:
                return None
            self._arrived.clear()
            await self._arrived.wait()
        frame = self._frames.popleft()
        self._pending_bytes += len(frame.data)
        self._removed.set()
        return frame

    def passed_on(self, nbytes: int) -> None:
        """Stop counting the bytes of a frame that is admitted or abandoned."""
        self._pending_bytes -= nbytes
        self._count_bytes()

    async def _wait_until_not_full(self, frame: StreamFrame) -> None:
        """Wait until the queue is not full; no more messages are read meanwhile."""
        self._pending_bytes += len(frame.data)
        try:
            self._count_bytes()
            while len(self._frames) >= FRAMES_WAITING:
                self._removed.clear()
                await self._removed.wait()
        except Overloaded:
            pass  # the caller drops the oldest frames
        finally:
            self._pending_bytes -= len(frame.data)

    def _count_bytes(self) -> None:
        self._buffer.hold(sum(len(frame.data) for frame in self._frames) + self._pending_bytes)
