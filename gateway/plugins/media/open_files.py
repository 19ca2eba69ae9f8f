"""Animations that stay open in a decoder's process between their frames."""

import asyncio
from typing import Self

from gateway.ingest.decoder_pool import DecoderPool
from gateway.ingest.decoder_process import DecoderProcess, Job, Reply, most_pixel_bytes
from gateway.ingest.image_formats import Header, Size, expected_frame_seconds, open_bytes
from gateway.limits.account import Account
from gateway.limits.bounds import Lease
from gateway.plugins.media.frame_selection import FrameSelection

_OPEN = "gateway.plugins.media.in_decoder.animations:OpenAnimation"
KEEP_SECONDS = 5.0
"""How long an open file may wait between its frames, in total, before another waiting file takes its slot. It is opened
again for its next frame. It may be waiting for the rate of its API key."""
ASK_AGAIN_SECONDS = 0.2
"""Time between two questions whether another file waits."""


class OpenFile:
    """The frames of one inspected animation, one at a time, in a process that has it open while the context lasts.

    Entering raises TooManyFrames, and what `DecoderPool.decode` raises. Open files have their own slots: as many as
    decoders, within the memory of all decoders; their frames share the slots of all images.

    Between two frames the request waits for permits, results and the rate of its API key. Another file gets the slot
    once these waits have taken KEEP_SECONDS; then this one is opened again for its next frame.
    """

    def __init__(
        self,
        decoders: DecoderPool,
        data: bytes,
        info: Header,
        size: Size,
        account: Account,
        wanted: FrameSelection,
    ) -> None:
        self._decoders = decoders
        self._slots = decoders.open_slots
        self._data, self._info, self._size, self._wanted = data, info, size, wanted
        self._memory_bytes = min(open_bytes(info, len(data)), decoders.limits.memory_bytes)
        self._account = account
        self._first = 0
        """The number in the file from which on the next requested frame is searched."""
        self._read = False
        """Whether the last requested frame was read."""
        self._process: DecoderProcess | None = None
        self._lease: Lease | None = None
        self._waited_seconds = self._waits_since = 0.0
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    @property
    def is_open(self) -> bool:
        """Whether it has a slot and a process."""
        return self._process is not None

    async def open(self) -> None:
        """Wait for a slot, and open the file at its next frame, unless it is open. Raises what `decode` raises."""
        if self.is_open:
            return
        account = self._account
        lease = self._slots.lease(1, self._memory_bytes, request=account, client=account.client)
        await lease.acquire()
        self._lease, self._waited_seconds = lease, 0.0
        try:
            self._process = self._decoders.take_process()
            wanted = {"info": self._info, "size": self._size, "wanted": self._wanted, "first": self._first}
            await self._run(Job(function=_OPEN, arguments=wanted, memory_bytes=self._memory_bytes), self._data)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give back the slot and the process."""
        self._begin_work()
        process, self._process = self._process, None
        if process is not None:
            self._decoders.return_process(process, self._account)
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.release()

    @property
    def has_next(self) -> bool:
        """Whether there is another requested frame."""
        return not self._read

    async def next(self) -> tuple[int, float, bytes]:
        """The next requested frame: its number, when it is shown in seconds, and an uncompressed PPM (P6).

        Raises as `decode`.
        """
        while True:
            await self.open()
            job = Job(function="", most_result_bytes=most_pixel_bytes(self._info, self._size))
            reply, pixels = await self._run(job, b"")
            if pixels:
                self._read = not reply.open
                self._first = reply.frame + 1
                return reply.frame, reply.shown_seconds, pixels

    async def _run(self, job: Job, data: bytes) -> tuple[Reply, bytes]:
        info, expected = self._info, expected_frame_seconds(self._info)
        self._begin_work()
        try:
            return await self._decoders.run(
                job, data, info, self._account, expected, process=self._process, nbytes=len(self._data)
            )
        finally:
            self._end_work()

    def _begin_work(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._waited_seconds += asyncio.get_running_loop().time() - self._waits_since

    def _end_work(self) -> None:
        loop = asyncio.get_running_loop()
        self._waits_since = loop.time()
        self._timer = loop.call_later(max(KEEP_SECONDS - self._waited_seconds, 0), self._close_for_another)

    def _close_for_another(self) -> None:
        """Close the file if another one waits for a slot; otherwise ask again soon."""
        if len(self._slots):
            self.close()
        else:
            self._timer = asyncio.get_running_loop().call_later(ASK_AGAIN_SECONDS, self._close_for_another)
