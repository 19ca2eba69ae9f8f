"""The decoders of one gateway process: a few child processes, shared fairly by requests."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Hashable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
import structlog
from anyio import CancelScope
from numpy.typing import NDArray

from gateway import metrics
from gateway.errors import (
    GatewayError,
    InvalidImage,
    Overloaded,
    TooCostly,
    TooManyFrames,
    TruncatedImage,
    UndecodableImage,
    UnsupportedFormat,
)
from gateway.ingest.decode_budget import (
    DecodeLimits,
    Size,
    expected_frame_seconds,
    expected_seconds,
    memory_limit,
    most_seconds,
    open_bytes,
    peak_bytes,
    reserve_seconds,
)
from gateway.ingest.decoders.worker import (
    START_SECONDS,
    AnimationJob,
    FrameJob,
    HeaderJob,
    HeatMapJob,
    ImageJob,
    Job,
    MaskingJob,
    Reply,
    Worker,
    WorkerLost,
)
from gateway.ingest.frames import FrameSelection
from gateway.ingest.image_formats import ImageFormat
from gateway.ingest.image_info import ImageInfo
from gateway.ingest.masking import OVERLAY_SIDE, HeatMap, Masking
from gateway.limits.account import STREAM_SECONDS_PER_SECOND, Account, Spending
from gateway.limits.lease import Bound, Lease
from gateway.limits.round_robin import RoundRobin

log = structlog.get_logger("gateway")

LET_FINISH_SECONDS = 0.2
"""Time that a cancelled job gets to finish: ending its process and starting another one costs as much."""
WALL_SECONDS_PER_CPU_SECOND = 20.0
"""A decoder that neither computes nor replies is ended after this many times the processor time of its job."""
KEEP_SECONDS = 5.0
"""How long an open file may wait between its frames, in all, before it makes room for another one that waits. Then it
is opened again once its next frame is wanted: what it waits for may be the rate of its own API key."""
MASKING_PART = 4
"""At most 1/MASKING_PART of `count` images are open to be masked."""
_PNG_BYTES = 64 * 1024
"""Bytes of a PNG beyond its pixels: chunks, filters, and what deflate adds to pixels that it cannot compress."""
SPARE_SECONDS = 5.0
"""How long an idle process beyond `count` is kept: starting one takes longer than decoding most images."""

_ERRORS = {
    error.code: error
    for error in (InvalidImage, TooCostly, TooManyFrames, TruncatedImage, UndecodableImage, UnsupportedFormat)
}


class Decoders:
    """Decodes images in at most `count` child processes at once.

    Clients alternate, and the requests of each. The decoders hold at most `limits.memory_bytes` for all images
    together. An image that exceeds its limit of time or memory ends its process and affects no other image: the next
    one gets a new process.
    """

    def __init__(self, count: int, *, limits: DecodeLimits) -> None:
        self._limits = limits
        self.account = partial(Account, limits.request_cpu_seconds, limits.cpu_seconds)
        """Makes the account of one request."""
        self._count = count
        self._slots = _slots(count, limits)
        # Files stay open between their frames, and must not occupy the slots of images.
        self._animation_slots = _slots(count, limits)
        # Masked images are open for many times as long, and must not occupy those slots either.
        self._masking_slots = _slots(max(1, count // MASKING_PART), limits)
        self._idle: list[Worker] = []
        self._busy: set[Worker] = set()
        self._trimming: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        # So that the first image does not wait for a start; the other processes start when images wait.
        self._idle.append(Worker(self._limits.image_pixels))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for worker in self._busy:
            worker.interrupt()
        if self._trimming is not None:
            self._trimming.cancel()
        while self._idle:
            self._idle.pop().close()

    def stream_account(self, client: Hashable = None) -> Account:
        """The account of one stream of a client."""
        limits = self._limits
        return Account(
            limits.request_cpu_seconds,
            limits.cpu_seconds,
            seconds_per_second=STREAM_SECONDS_PER_SECOND,
            client=client,
        )

    async def read_header(self, data: bytes, image_format: ImageFormat, account: Account) -> ImageInfo:
        """The header of a file whose format is not passed on; raises InvalidImage, and what `decode` raises."""
        info = ImageInfo(image_format, 0, 0)
        memory_bytes = min(open_bytes(info, len(data)), self._limits.memory_bytes)
        job = HeaderJob(image_format=image_format, nbytes=len(data), memory_bytes=memory_bytes)
        expected = expected_frame_seconds(info)
        reply, _ = await self._do(job, data, info, account, expected, min(3 * len(data), self._limits.memory_bytes))
        return ImageInfo(
            image_format,
            reply["width"],
            reply["height"],
            bit_depth=reply["bit_depth"],
            has_alpha=reply["has_alpha"],
            animated=reply["animated"],
        )

    async def decode(self, data: bytes, info: ImageInfo, size: Size, account: Account) -> "Decoded":
        """Decode an inspected image: see `gateway_decoder.decoding.decode`.

        Raises UndecodableImage, TruncatedImage, UnsupportedFormat, TooCostly if it exceeds its limits or its account is
        empty, and Overloaded if no decoder can be started. After it returns or raises, no process works on the image:
        a cancellation waits for at most LET_FINISH_SECONDS and then ends the process.
        """
        memory_bytes = min(memory_limit(info, len(data)), self._limits.memory_bytes)
        job = ImageJob(info=info, nbytes=len(data), size=size, memory_bytes=memory_bytes)
        expected = expected_seconds(info, len(data))
        # The frame of an AVIF or HEIC may be larger than its header says, so its limit is reserved.
        slot_bytes = memory_bytes if info.format.traits.slow else min(peak_bytes(info, size), memory_bytes)
        reply, pixels = await self._do(job, data, info, account, expected, slot_bytes)
        return Decoded(pixels, reply["damaged"])

    @asynccontextmanager
    async def animation(
        self, data: bytes, info: ImageInfo, size: Size, account: Account, wanted: FrameSelection
    ) -> AsyncIterator["OpenAnimation"]:
        """An inspected animation, open in a process of its own while the context lasts.

        Entering raises TooManyFrames, and what `decode` raises. Open files have their own slots: `count` at once,
        within `limits.memory_bytes`; their frames share the slots of all images. See OpenAnimation.
        """
        memory_bytes = min(open_bytes(info, len(data)), self._limits.memory_bytes)
        job = AnimationJob(info=info, nbytes=len(data), size=size, wanted=wanted, memory_bytes=memory_bytes)
        with OpenAnimation(self, self._animation_slots, job, data, account) as animation:
            await animation.open()
            yield animation

    @asynccontextmanager
    async def masked(
        self, data: bytes, info: ImageInfo, size: Size, account: Account, masking: Masking
    ) -> AsyncIterator["MaskedImage"]:
        """An inspected image, open in a process of its own while the context lasts; its frames are the masked copies.

        Entering raises what `decode` raises. Open images have their own slots; their copies share those of all images.
        """
        memory_bytes = min(memory_limit(info, len(data)), self._limits.memory_bytes)
        job = MaskingJob(info=info, nbytes=len(data), size=size, masking=masking, memory_bytes=memory_bytes)
        with MaskedImage(self, self._masking_slots, job, data, account) as image:
            await image.open()
            yield image

    async def _do(
        self,
        job: Job,
        data: bytes,
        info: ImageInfo,
        account: Account,
        expected: float,
        slot_bytes: int,
        of: "tuple[OpenAnimation, Worker] | None" = None,
    ) -> tuple[Reply, bytes]:
        """Run a job in a slot and within its limits: in any process, or in that of an open animation."""
        animation = of[0] if of else None
        nbytes = animation.nbytes if animation else len(data)
        worker_of: AbstractAsyncContextManager[Worker] = nullcontext(of[1]) if of else self._worker(account)
        async with (
            self._spending(account, info, nbytes, expected) as spending,
            self._slots.lease(account, 1, slot_bytes, client=account.client),
            worker_of as worker,
        ):
            if animation:
                animation.ended = False
            reply, pixels = await _run(worker, worker.do(job, data, spending.cpu_seconds), spending)
        if reply["error"]:
            if animation:
                animation.ended = True  # the process has closed it
            if reply["cause"]:
                log.warning("decoder_fault", cause=reply["cause"], format=info.format.value)
            raise _ERRORS.get(reply["error"], UndecodableImage)(reply["message"] or None)
        return reply, pixels

    @asynccontextmanager
    async def _spending(
        self, account: Account, info: ImageInfo, nbytes: int, expected: float
    ) -> AsyncIterator[Spending]:
        """Reserve the processor time of an image from its account."""
        async with account.spending(reserve_seconds(expected), most_seconds(info, nbytes)) as spending:
            try:
                yield spending
            finally:
                if spending.spent_seconds:
                    metrics.DECODE_CPU_SECONDS.observe(spending.spent_seconds)

    @asynccontextmanager
    async def _worker(self, account: Account) -> AsyncIterator[Worker]:
        """A worker for one image; if it is lost, the error says why."""
        worker = self._take_worker()
        try:
            yield worker
        except WorkerLost as lost:
            raise _error_of(lost) from lost
        finally:
            self._return_worker(worker, account)

    def _take_worker(self) -> Worker:
        """An idle worker, or a new one; raises Overloaded if none can be started."""
        try:
            worker = self._living() or Worker(self._limits.image_pixels)
        except OSError as exc:
            raise Overloaded("No process to decode the image could be started; try again later.") from exc
        self._busy.add(worker)
        return worker

    def _return_worker(self, worker: Worker, account: Account) -> None:
        """Make a worker idle; if its process has ended, another one is started, and `account` is charged."""
        self._busy.discard(worker)
        if not worker.alive():
            # For its last job, and for the start of its replacement, which takes as long as its own did.
            account.charge(worker.charge_seconds() + worker.start_seconds)
            if not self._idle:
                with suppress(OSError):
                    self._idle.append(Worker(self._limits.image_pixels))  # it starts while others work
        else:
            self._idle.append(worker)
            if len(self._idle) > self._count and not self._trimming:  # animations may use `count` more
                self._trimming = asyncio.get_running_loop().call_later(SPARE_SECONDS, self._close_spare)

    def _close_spare(self) -> None:
        """Close one idle process beyond `count`, and the next one later."""
        self._trimming = None
        if len(self._idle) > self._count:
            self._idle.pop(0).close()
        if len(self._idle) > self._count:
            self._trimming = asyncio.get_running_loop().call_later(SPARE_SECONDS, self._close_spare)

    def _living(self) -> Worker | None:
        """An idle worker, None if there is none; those that ended while idle are logged."""
        while self._idle:
            worker = self._idle.pop()
            if worker.alive():
                return worker
            log.warning("decoder_lost", reason="idle", returncode=worker.close())
        return None


class Decoded(NamedTuple):
    """A decoded image: an uncompressed PPM (P6), or the input of its model; and whether the file's data was damaged."""

    pixels: bytes
    damaged: bool


class OpenAnimation:
    """The frames of one file, one at a time, in a process that has it open. A context manager, which closes it.

    Between two frames the request waits for permits, results and the rate of its API key. Another file gets the slot
    once these waits have taken KEEP_SECONDS; then this one is opened again for its next frame.
    """

    def __init__(
        self, decoders: Decoders, slots: RoundRobin, job: AnimationJob | MaskingJob, data: bytes, account: Account
    ) -> None:
        self._decoders = decoders
        self._slots = slots
        self._job = job
        self._data = data
        self._account = account
        self.nbytes = len(data)
        self.ended = True
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
            self._worker = self._decoders._take_worker()
            self._opened(await self._run(self._job, self._data))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give back the slot and the process."""
        self._begin_work()
        worker, self._worker = self._worker, None
        if worker is not None:
            if not self.ended:  # the process still holds it
                worker.close()
            self._decoders._return_worker(worker, self._account)
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.release()

    async def next(self) -> "AnimationFrame | None":
        """The next requested frame as an uncompressed PPM (P6); None after the last one. Raises as `decode`."""
        while True:
            reply, pixels = await self.do(FrameJob(info=self._job.info, size=self._job.size))
            if reply["ends"]:
                self.ended = True
                return None
            if pixels:
                self._job = replace(self._job, first=reply["frame"] + 1)
                return AnimationFrame(reply["frame"], reply["shown_seconds"], pixels)

    async def do(self, job: Job, data: bytes = b"") -> tuple[Reply, bytes]:
        """Run a job in the file's process."""
        await self.open()
        return await self._run(job, data)

    async def _run(self, job: Job, data: bytes) -> tuple[Reply, bytes]:
        assert self._worker is not None
        info = self._job.info
        expected = expected_frame_seconds(info)
        self._begin_work()
        try:
            return await self._decoders._do(job, data, info, self._account, expected, 0, (self, self._worker))
        except WorkerLost as lost:
            raise _error_of(lost) from lost
        finally:
            self._end_work()

    def _opened(self, reply: tuple[Reply, bytes]) -> None:
        """Take the reply of the process that has opened the file."""

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


class MaskedImage(OpenAnimation):
    """The masked copies of one open image, and in the end its heat map."""

    def __init__(self, decoders: Decoders, slots: RoundRobin, job: MaskingJob, data: bytes, account: Account) -> None:
        super().__init__(decoders, slots, job, data, account)
        self.masking = job.masking
        self.damaged = False
        """Whether the image's data is damaged."""

    def _opened(self, reply: tuple[Reply, bytes]) -> None:
        self.damaged = reply[0]["damaged"]

    async def draw(self, scores: NDArray[np.float32], *, closes: bool = True) -> HeatMap:
        """The heat map of a class with these scores, fp32 [images]; closes the image unless more scores follow."""
        side = self.masking.map_side
        values_bytes = 4 * side * side
        data = scores.astype(np.float32).tobytes()
        most_bytes = values_bytes + 4 * OVERLAY_SIDE**2 + _PNG_BYTES
        job = HeatMapJob(info=self._job.info, nbytes=len(data), most_bytes=most_bytes, closes=closes)
        drawn = b""
        while not drawn:  # the process may need several jobs to make the masks again
            _, drawn = await self.do(job, data)
        self.ended = closes
        if len(drawn) <= values_bytes:
            raise UndecodableImage  # the process was taken over
        values = np.frombuffer(drawn[:values_bytes], np.float32).reshape(side, side)
        if not np.isfinite(values).all():
            raise UndecodableImage
        return HeatMap(values, drawn[values_bytes:])


@dataclass(frozen=True, slots=True)
class AnimationFrame:
    """One frame: its number in the file, when it is shown, and its pixels as PPM."""

    index: int
    seconds: float
    pixels: bytes


def _slots(count: int, limits: DecodeLimits) -> RoundRobin:
    """So many slots, whose images need `limits.memory_bytes` at most in all."""
    return RoundRobin(
        Bound("decoders", count), Bound("decode_memory_bytes", limits.memory_bytes, metrics.DECODING_BYTES)
    )


def _error_of(lost: WorkerLost) -> GatewayError:
    """The error of an image whose process ended; counted and logged."""
    metrics.DECODERS_LOST.labels(lost.reason).inc()
    log.warning("decoder_lost", reason=lost.reason, returncode=lost.returncode)
    if lost.reason == "killed":  # not for what the image is: it stays within its own limit
        return Overloaded("The process that decoded the image was killed, as for lack of memory; try again later.")
    return UndecodableImage() if lost.reason == "crash" else TooCostly()


async def _run(worker: Worker, work: Awaitable[tuple[Reply, bytes]], spending: Spending) -> tuple[Reply, bytes]:
    """Run a job in a worker and measure its processor time; a cancelled job has ended when this returns."""
    # The task is never cancelled: otherwise a reply that arrives at that moment would be read as the next job's.
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait([task], timeout=START_SECONDS + WALL_SECONDS_PER_CPU_SECOND * spending.cpu_seconds)
    except asyncio.CancelledError:
        await _wait_uninterrupted(task, LET_FINISH_SECONDS)
        raise
    finally:
        if not task.done():
            worker.interrupt()
            await _wait_uninterrupted(task, None)
        task.exception()  # of a task whose caller was cancelled, asyncio would log it as never retrieved
        spending.spent_seconds = worker.charge_seconds()
    return task.result()


async def _wait_uninterrupted(task: "asyncio.Task[Any]", seconds: float | None) -> None:
    """Wait for `task`, for at most `seconds`, even if the caller is cancelled meanwhile."""
    now = asyncio.get_running_loop().time
    end = None if seconds is None else now() + seconds
    with CancelScope(shield=True):
        while not task.done() and (end is None or now() < end):
            with suppress(asyncio.CancelledError):
                await asyncio.wait([task], timeout=end and max(end - now(), 0))
