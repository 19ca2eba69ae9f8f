"""Animations that stay open in a decoder's process between their frames."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Self

from gateway.inference.request import OpenedImage
from gateway.ingest.decoders.pool import Decoders, check_reply, error_of
from gateway.ingest.decoders.worker import DecoderJob, PixelJob, Reply, Worker, WorkerLost
from gateway.ingest.frames import FrameSelection
from gateway.ingest.image_formats import Header, Size, expected_frame_seconds, open_bytes
from gateway.limits.account import Account
from gateway.limits.pools import Lease, RoundRobin

KEEP_SECONDS = 5.0
"""How long an open file may wait between its frames, in total, before another waiting file takes its slot. It is opened
again for its next frame. It may be waiting for the rate of its API key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnimationJob(DecoderJob):
    """Open an animated file, at its frame number `first`; it may take `memory_bytes` as long as it is open."""

    info: Header
    nbytes: int
    memory_bytes: int
    size: Size
    wanted: FrameSelection
    first: int = 0
    kind: str = "animation"


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameJob(PixelJob):
    """Decode the next requested frame of the open animation.

    The reply has the size of the pixels, the number of the `frame`, its start time, and whether the animation `ends`
    with it; it has no pixels if the process takes another job first.
    """

    kind: str = "frame"


@asynccontextmanager
async def animation(
    decoders: Decoders, data: bytes, info: Header, size: Size, account: Account, wanted: FrameSelection
) -> AsyncIterator["OpenFile"]:
    """An inspected animation, open in a separate process while the context lasts.

    Entering raises TooManyFrames, and what `Decoders.decode` raises. Open files have their own slots: as many as
    decoders, within the memory of all decoders; their frames share the slots of all images. See OpenFile.
    """
    memory_bytes = min(open_bytes(info, len(data)), decoders.limits.memory_bytes)
    job = AnimationJob(info=info, nbytes=len(data), size=size, wanted=wanted, memory_bytes=memory_bytes)
    with OpenFile(decoders, decoders.slots_of("animation", decoders.count), job, data, account) as opened:
        await opened.open()
        yield opened


class OpenFile:
    """The frames of one file, one at a time, in a process that has it open. A context manager, which closes it.

    Between two frames the request waits for permits, results and the rate of its API key. Another file gets the slot
    once these waits have taken KEEP_SECONDS; then this one is opened again for its next frame.
    """

    def __init__(self, decoders: Decoders, slots: RoundRobin, job: AnimationJob, data: bytes, account: Account) -> None:
        self._decoders = decoders
        self._slots = slots
        self._job = job
        self._data = data
        self._account = account
        self._read = False
        """Whether the last requested frame was read."""
        self._ended = True
        """Whether the process has closed the file."""
        self._worker: Worker | None = None
        self._lease: Lease | None = None
        self._waited_seconds = self._waits_since = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_open(self) -> bool:
        """Whether it has a slot and a process."""
        return self._worker is not None

    async def open(self) -> None:
        """Wait for a slot, and open the file at its next frame, unless it is open. Raises what `decode` raises."""
        if self.is_open:
            return
        account = self._account
        self._lease = await self._slots.acquire(account, 1, self._job.memory_bytes, client=account.client)
        self._waited_seconds = 0.0
        try:
            self._worker = self._decoders.take_worker()
            await self._run(self._job, self._data)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give back the slot and the process."""
        self._begin_work()
        worker, self._worker = self._worker, None
        if worker is not None:
            if not self._ended:  # the process still holds it
                worker.close()
            self._decoders.return_worker(worker, self._account)
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.release()

    @property
    def has_next(self) -> bool:
        """Whether there is another requested frame."""
        return not self._read

    async def next(self) -> OpenedImage:
        """The next requested frame as an uncompressed PPM (P6). Raises as `decode`."""
        while True:
            await self.open()
            reply, pixels = await self._run(FrameJob(info=self._job.info, size=self._job.size), b"")
            if pixels:
                self._read = self._ended = reply.ends
                self._job = replace(self._job, first=reply.frame + 1)
                return OpenedImage(reply.frame, reply.shown_seconds, pixels)

    async def _run(self, job: DecoderJob, data: bytes) -> tuple[Reply, bytes]:
        assert self._worker is not None
        info = self._job.info
        expected = expected_frame_seconds(info)
        self._begin_work()
        try:
            reply, pixels = await self._decoders.work(
                nullcontext(self._worker),
                job,
                data,
                info,
                self._account,
                expected,
                nbytes=len(self._data),
                began=self._begun,
            )
            self._ended = bool(reply.error)  # the process then closes the file
            check_reply(reply, info)
        except WorkerLost as lost:
            raise error_of(lost) from lost
        finally:
            self._end_work()
        return reply, pixels

    def _begun(self) -> None:
        self._ended = False

    def _begin_work(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._waited_seconds += asyncio.get_running_loop().time() - self._waits_since
        self._slots.withdraw(self.close)

    def _end_work(self) -> None:
        loop = asyncio.get_running_loop()
        self._waits_since = loop.time()
        self._timer = loop.call_later(max(KEEP_SECONDS - self._waited_seconds, 0), self._slots.offer, self.close)
