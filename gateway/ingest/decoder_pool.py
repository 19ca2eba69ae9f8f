"""The decoders of one gateway process: a few child processes, shared fairly by requests."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext, suppress
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
from gateway.ingest.decoder_process import (
    START_SECONDS,
    DecoderLost,
    DecoderProcess,
    Job,
    Reply,
    most_pixel_bytes,
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
from gateway.limits.account import Account
from gateway.limits.bounds import Bound, FairQueue

log = structlog.get_logger("gateway")

LET_FINISH_SECONDS = 0.2
"""Time that a cancelled job gets to finish: ending its process and starting another one costs as much."""
WALL_SECONDS_PER_CPU_SECOND = 20.0
"""A decoder that neither computes nor replies is ended after this many times the processor time of its job."""
SPARE_SECONDS = 5.0
"""How long an idle process beyond `count` is kept: starting one takes longer than decoding most images."""

_READ_HEADER, _DECODE = "gateway.decoder.jobs:read_header", "gateway.decoder.jobs:decode"

_ERRORS = {
    error.code: error
    for error in (InvalidImage, TooCostly, TooManyFrames, TruncatedImage, UndecodableImage, UnsupportedFormat)
}


class DecoderPool:
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
        self.open_slots = _slots(count, limits)
        """The slots of files that stay open; images have their own, so that they need not wait."""
        self._idle: list[DecoderProcess] = []
        self._busy: set[DecoderProcess] = set()

    async def __aenter__(self) -> Self:
        # So that the first image does not wait for a start; the other processes start when images wait.
        self._idle.append(DecoderProcess(self.limits.image_pixels))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for process in self._busy:
            process.interrupt()
        while self._idle:
            self._idle.pop().close()

    async def read_header(self, data: bytes, image_format: ImageFormat, account: Account) -> Header:
        """The header of a file that is not passed on; raises InvalidImage, and what `decode` raises."""
        info = Header(image_format, 0, 0)
        memory_bytes = min(open_bytes(info, len(data)), self.limits.memory_bytes)
        job = Job(function=_READ_HEADER, arguments={"image_format": image_format}, memory_bytes=memory_bytes)
        expected = expected_frame_seconds(info)
        reply, _ = await self.run(job, data, info, account, expected, min(3 * len(data), self.limits.memory_bytes))
        return Header(
            image_format,
            reply.width,
            reply.height,
            reply.orientation,
            bit_depth=reply.bit_depth,
            has_alpha=reply.has_alpha,
            gateway_only=True,
            animated=reply.animated,
        )

    async def decode(self, data: bytes, info: Header, size: Size, account: Account) -> "Decoded":
        """Decode an inspected image: see `gateway.decoder.decoding.decode`.

        Raises UndecodableImage, TruncatedImage, UnsupportedFormat, TooCostly if it exceeds its limits or its account is
        empty, and Overloaded if no decoder can be started. After it returns or raises, no process works on the image:
        a cancellation waits for at most LET_FINISH_SECONDS and then ends the process.
        """
        memory_bytes = min(memory_limit(info, len(data)), self.limits.memory_bytes)
        job = Job(
            function=_DECODE,
            arguments={"info": info, "size": size},
            memory_bytes=memory_bytes,
            most_result_bytes=most_pixel_bytes(info, size),
        )
        expected = expected_seconds(info, len(data))
        # The frame of an AVIF or HEIC may be larger than its header says, so its limit is reserved.
        slot_bytes = memory_bytes if info.format.traits.slow else min(peak_bytes(info, size), memory_bytes)
        reply, pixels = await self.run(job, data, info, account, expected, slot_bytes)
        return Decoded(pixels, reply.damaged)

    async def run(
        self,
        job: Job,
        data: bytes,
        info: Header,
        account: Account,
        expected: float,
        slot_bytes: int = 0,
        *,
        process: DecoderProcess | None = None,
        nbytes: int | None = None,
    ) -> tuple[Reply, bytes]:
        """Run a job in a slot of all images, in any process or a given one; raises what `decode` raises.

        `nbytes` is the size of the file, if `data` is not the file.
        """
        most = most_seconds(info, len(data) if nbytes is None else nbytes)
        async with (
            account.reserve(reserve_seconds(expected), most) as cpu_seconds,
            self._slots.lease(1, slot_bytes, request=account, client=account.client),
            self._any_process(account) if process is None else nullcontext(process) as process,
        ):
            try:
                reply, pixels = await _run(process, job, data, cpu_seconds, account)
            except DecoderLost as lost:
                raise _error_of(lost) from lost
        if reply.error:
            if reply.cause:
                log.warning("decoder_fault", cause=reply.cause, format=info.format.value)
            raise _ERRORS.get(reply.error, UndecodableImage)(reply.message or None)
        return reply, pixels

    @asynccontextmanager
    async def _any_process(self, account: Account) -> AsyncIterator[DecoderProcess]:
        """A process for one job."""
        process = self.take_process()
        try:
            yield process
        finally:
            self.return_process(process, account)

    def take_process(self) -> DecoderProcess:
        """An idle process, or a new one; raises Overloaded if none can be started."""
        try:
            process = self._living() or DecoderProcess(self.limits.image_pixels)
        except OSError as exc:
            raise Overloaded("No process to decode the image could be started; try again later.") from exc
        self._busy.add(process)
        return process

    def return_process(self, process: DecoderProcess, account: Account) -> None:
        """Take a process back; if it has ended or must be ended, another one is started, and `account` is charged."""
        self._busy.discard(process)
        if not process.idle:
            process.close()
        if not process.alive():
            # For its last job, and for the start of its replacement, which takes as long as its own did.
            account.spend(process.charge_seconds() + process.start_seconds)
            if not self._idle:
                with suppress(OSError):
                    self._idle.append(DecoderProcess(self.limits.image_pixels))  # it starts while others work
        else:
            self._idle.append(process)
            if len(self._idle) > self.count:  # open files may use more
                asyncio.get_running_loop().call_later(SPARE_SECONDS, self._close_spare)

    def _close_spare(self) -> None:
        """Close one idle process beyond `count`."""
        if len(self._idle) > self.count:
            self._idle.pop(0).close()

    def _living(self) -> DecoderProcess | None:
        """An idle process, None if there is none; logs the ones that ended while idle."""
        while self._idle:
            process = self._idle.pop()
            if process.alive():
                return process
            log.warning("decoder_lost", reason="idle", returncode=process.close())
        return None


class Decoded(NamedTuple):
    """A decoded image: an uncompressed PPM (P6), or the input of its model; and whether the file's data was damaged."""

    pixels: bytes
    damaged: bool


def _slots(count: int, limits: DecodeLimits) -> FairQueue:
    """`count` slots, whose images need `limits.memory_bytes` at most in all."""
    return FairQueue(
        Bound("decoders", count), Bound("decode_memory_bytes", limits.memory_bytes, metrics.DECODING_BYTES)
    )


def _error_of(lost: DecoderLost) -> GatewayError:
    """The error of an image whose process ended; counted and logged."""
    metrics.DECODERS_LOST.labels(lost.reason).inc()
    log.warning("decoder_lost", reason=lost.reason, returncode=lost.returncode)
    if lost.reason == "killed":  # not for what the image is: it stays within its own limit
        return Overloaded("The process that decoded the image was killed, as for lack of memory; try again later.")
    return UndecodableImage() if lost.reason == "crash" else TooCostly()


async def _run(
    process: DecoderProcess, job: Job, data: bytes, cpu_seconds: float, account: Account
) -> tuple[Reply, bytes]:
    """Run a job in a process and charge its processor time; a cancelled job has ended when this returns."""
    # The task is never cancelled: otherwise a reply that arrives at that moment would be read as the next job's.
    task = asyncio.ensure_future(process.do(job, data, cpu_seconds))
    try:
        await asyncio.wait([task], timeout=START_SECONDS + WALL_SECONDS_PER_CPU_SECOND * cpu_seconds)
    except asyncio.CancelledError:
        await _wait_uninterrupted(task, LET_FINISH_SECONDS)
        raise
    finally:
        if not task.done():
            process.interrupt()
            await _wait_uninterrupted(task, None)
        task.exception()  # of a task whose caller was cancelled, asyncio would log it as never retrieved
        spent_seconds = process.charge_seconds()
        account.spend(spent_seconds)
        if spent_seconds:
            metrics.DECODE_CPU_SECONDS.observe(spent_seconds)
    return task.result()


async def _wait_uninterrupted(task: "asyncio.Task[Any]", seconds: float | None) -> None:
    """Wait for `task`, for at most `seconds`, even if the caller is cancelled meanwhile."""
    now = asyncio.get_running_loop().time
    end = None if seconds is None else now() + seconds
    with CancelScope(shield=True):
        while not task.done() and (end is None or now() < end):
            with suppress(asyncio.CancelledError):
                await asyncio.wait([task], timeout=end and max(end - now(), 0))
