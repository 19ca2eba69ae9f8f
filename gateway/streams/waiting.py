"""The frames of one stream that wait for their turn: a few, and of more the oldest go, or the client waits."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from gateway.errors import Overloaded
from gateway.inference.request_spec import Result
from gateway.limits.upload_buffer import HeldBytes
from gateway.streams.options import Drop, StreamParameters


@dataclass(slots=True)
class StreamFrame:
    """A frame on its way; `parameters` are those that were asked for when it came."""

    number: int
    data: bytes = field(repr=False)
    parameters: StreamParameters
    came_at: float
    result: "asyncio.Future[Result | Exception]"


class WaitingFrames:
    """A queue of at most `most` frames; `buffer` counts their bytes until they have their permits.

    `dropped` is called for each frame that goes without an answer.
    """

    def __init__(self, most: int, buffer: HeldBytes, dropped: Callable[[], None]) -> None:
        self._most = most
        self._buffer = buffer
        self._dropped = dropped
        self._frames: deque[StreamFrame] = deque()
        self._pending_bytes = 0
        """Of frames that are not among those any more, or not yet."""
        self._arrived, self._room = asyncio.Event(), asyncio.Event()
        self._ended = False

    async def put(self, frame: StreamFrame) -> None:
        """Put a frame in the queue; where that is full, the oldest goes, or the client is read no further."""
        if frame.parameters.drop is Drop.NEVER and len(self._frames) >= self._most:
            await self._wait_for_room(frame)
        while len(self._frames) >= self._most:
            self._drop_oldest()
        self._frames.append(frame)
        try:
            self._count_bytes()
        except Overloaded:
            # The process holds as much as it may: the newest frame is the one that matters to a camera.
            while len(self._frames) > 1:
                self._drop_oldest()
            try:
                self._count_bytes()
            except Overloaded:
                self._drop_oldest()
        self._arrived.set()

    def end(self) -> None:
        """No other frame comes."""
        self._ended = True
        self._arrived.set()

    async def next(self) -> StreamFrame | None:
        """The oldest frame, whose bytes are counted until `passed_on`; None once there is none and none comes."""
        while not self._frames:
            if self._ended:
                return None
            self._arrived.clear()
            await self._arrived.wait()
        frame = self._frames.popleft()
        self._pending_bytes += len(frame.data)
        self._room.set()
        return frame

    def passed_on(self, nbytes: int) -> None:
        """Bytes of a frame have their permit, or are given up."""
        self._pending_bytes -= nbytes
        self._count_bytes()

    async def _wait_for_room(self, frame: StreamFrame) -> None:
        """Hold a frame, and so the socket, until there is room behind the others that wait."""
        self._pending_bytes += len(frame.data)
        try:
            self._count_bytes()
            while len(self._frames) >= self._most:
                self._room.clear()
                await self._room.wait()
        except Overloaded:
            pass  # the oldest go
        finally:
            self._pending_bytes -= len(frame.data)

    def _drop_oldest(self) -> None:
        self._frames.popleft()
        self._dropped()

    def _count_bytes(self) -> None:
        self._buffer.hold(sum(len(frame.data) for frame in self._frames) + self._pending_bytes)
