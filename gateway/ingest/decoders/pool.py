"""The decoders of one gateway process: a few child processes, shared fairly by requests."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, Self

import structlog
from anyio import CancelScope

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
from gateway.ingest.decoders.worker import (
    START_SECONDS,
    DecoderJob,
    HeaderJob,
    ImageJob,
    Reply,
    Worker,
    WorkerLost,
)
from gateway.ingest.image_formats import (
    DecodeLimits,
    Header,
    ImageFormat,
    Size,
    expected_frame_seconds,
    expected_seconds,
    memory_limit,
    most_seconds,
    open_bytes,
    peak_bytes,
    reserve_seconds,
)
from gateway.limits.account import Account, Spending
from gateway.limits.pools import Bound, RoundRobin

log = structlog.get_logger("gateway")

LET_FINISH_SECONDS = 0.2
"""Time that a cancelled job gets to finish: ending its process and starting another one costs as much."""
WALL_SECONDS_PER_CPU_SECOND = 20.0
"""A decoder that neither computes nor replies is ended after this many times the processor time of its job."""
SPARE_SECONDS = 5.0
"""How long an idle process beyond `count` is kept: starting one takes longer than decoding most images."""

_ERRORS = {
    error.code: error
    for error in (InvalidImage, TooCostly, TooManyFrames, TruncatedImage, UndecodableImage, UnsupportedFormat)
}


def _nothing() -> None:
    """Do nothing."""


class Decoders:
    """Decodes images in at most `count` child processes.

    Slots alternate between clients, and between the requests of a client. The decoders hold at most
    `limits.memory_bytes` for all images together. An image that exceeds its limit of time or memory ends its process
    and affects no other image: the next one gets a new process.
    """

    def __init__(self, count: int, *, limits: DecodeLimits) -> None:
        self.limits = limits
        self.account = partial(Account, limits.request_cpu_seconds, limits.cpu_seconds)
        """Makes a request's account."""
        self.count = count
        self._slots = _slots(count, limits)
        self._open_slots: dict[str, RoundRobin] = {}
        """The slots of files that stay open, by kind."""
        self._idle: list[Worker] = []
        self._busy: set[Worker] = set()
        self._trimming: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        # So that the first image does not wait for a start; the other processes start when images wait.
        self._idle.append(Worker(self.limits.image_pixels))
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

    async def read_header(self, data: bytes, image_format: ImageFormat, account: Account) -> Header:
        """The header of a file whose format is not passed on; raises InvalidImage, and what `decode` raises."""
        info = Header(image_format, 0, 0)
        memory_bytes = min(open_bytes(info, len(data)), self.limits.memory_bytes)
        job = HeaderJob(image_format=image_format, nbytes=len(data), memory_bytes=memory_bytes)
        expected = expected_frame_seconds(info)
        reply, _ = await self.run(job, data, info, account, expected, min(3 * len(data), self.limits.memory_bytes))
        return Header(
            image_format,
            reply.width,
            reply.height,
            bit_depth=reply.bit_depth,
            has_alpha=reply.has_alpha,
            animated=reply.animated,
        )

    async def decode(self, data: bytes, info: Header, size: Size, account: Account) -> "Decoded":
        """Decode an inspected image: see `gateway.decoder.decoding.decode`.

        Raises UndecodableImage, TruncatedImage, UnsupportedFormat, TooCostly if it exceeds its limits or its account is
        empty, and Overloaded if no decoder can be started. After it returns or raises, no process works on the image:
        a cancellation waits for at most LET_FINISH_SECONDS and then ends the process.
        """
        memory_bytes = min(memory_limit(info, len(data)), self.limits.memory_bytes)
        job = ImageJob(info=info, nbytes=len(data), size=size, memory_bytes=memory_bytes)
        expected = expected_seconds(info, len(data))
        # The frame of an AVIF or HEIC may be larger than its header says, so its limit is reserved.
        slot_bytes = memory_bytes if info.format.traits.slow else min(peak_bytes(info, size), memory_bytes)
        reply, pixels = await self.run(job, data, info, account, expected, slot_bytes)
        return Decoded(pixels, reply.damaged)

    def slots_of(self, kind: str, count: int) -> RoundRobin:
        """The `count` slots of files of one kind that stay open; images have their own, so that they need not wait."""
        if kind not in self._open_slots:
            self._open_slots[kind] = _slots(count, self.limits)
        return self._open_slots[kind]

    async def run(
        self, job: DecoderJob, data: bytes, info: Header, account: Account, expected: float, slot_bytes: int
    ) -> tuple[Reply, bytes]:
        """Run a job in any process, in a slot of all images; raises what `decode` raises."""
        reply, pixels = await self.work(
            self._worker(account), job, data, info, account, expected, slot_bytes, nbytes=len(data)
        )
        check_reply(reply, info)
        return reply, pixels

    async def work(
        self,
        worker: AbstractAsyncContextManager[Worker],
        job: DecoderJob,
        data: bytes,
        info: Header,
        account: Account,
        expected: float,
        slot_bytes: int = 0,
        *,
        nbytes: int,
        began: Callable[[], None] = _nothing,
    ) -> tuple[Reply, bytes]:
        """Run a job in a slot and within its limits; `nbytes` is the size of its file.

        `began` is called once it has its slot and its process. Raises TooCostly and WorkerLost.
        """
        async with (
            self._spending(account, info, nbytes, expected) as spending,
            self._slots.lease(account, 1, slot_bytes, client=account.client),
            worker as process,
        ):
            began()
            return await _run(process, process.do(job, data, spending.cpu_seconds), spending)

    @asynccontextmanager
    async def _spending(self, account: Account, info: Header, nbytes: int, expected: float) -> AsyncIterator[Spending]:
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
        worker = self.take_worker()
        try:
            yield worker
        except WorkerLost as lost:
            raise error_of(lost) from lost
        finally:
            self.return_worker(worker, account)

    def take_worker(self) -> Worker:
        """An idle worker, or a new one; raises Overloaded if none can be started."""
        try:
            worker = self._living() or Worker(self.limits.image_pixels)
        except OSError as exc:
            raise Overloaded("No process to decode the image could be started; try again later.") from exc
        self._busy.add(worker)
        return worker

    def return_worker(self, worker: Worker, account: Account) -> None:
        """Make a worker idle; if its process has ended, another one is started, and `account` is charged."""
        self._busy.discard(worker)
        if not worker.alive():
            # For its last job, and for the start of its replacement, which takes as long as its own did.
            account.charge(worker.charge_seconds() + worker.start_seconds)
            if not self._idle:
                with suppress(OSError):
                    self._idle.append(Worker(self.limits.image_pixels))  # it starts while others work
        else:
            self._idle.append(worker)
            if len(self._idle) > self.count and not self._trimming:  # open files may use more
                self._trimming = asyncio.get_running_loop().call_later(SPARE_SECONDS, self._close_spare)

    def _close_spare(self) -> None:
        """Close one idle process beyond `count`, and the next one later."""
        self._trimming = None
        if len(self._idle) > self.count:
            self._idle.pop(0).close()
        if len(self._idle) > self.count:
            self._trimming = asyncio.get_running_loop().call_later(SPARE_SECONDS, self._close_spare)

    def _living(self) -> Worker | None:
        """An idle worker, None if there is none; logs the ones that ended while idle."""
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


def _slots(count: int, limits: DecodeLimits) -> RoundRobin:
    """`count` slots, whose images need `limits.memory_bytes` at most in all."""
    return RoundRobin(
        Bound("decoders", count), Bound("decode_memory_bytes", limits.memory_bytes, metrics.DECODING_BYTES)
    )


def check_reply(reply: Reply, info: Header) -> None:
    """Raise the error of a reply, if it has one."""
    if reply.error:
        if reply.cause:
            log.warning("decoder_fault", cause=reply.cause, format=info.format.value)
        raise _ERRORS.get(reply.error, UndecodableImage)(reply.message or None)


def error_of(lost: WorkerLost) -> GatewayError:
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
