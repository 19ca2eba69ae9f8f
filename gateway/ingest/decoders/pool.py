"""The decoders of one gateway process: a few children, and fair turns at them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

import structlog
from anyio import CancelScope

from gateway import metrics
from gateway.errors import ImageError, Overloaded, TooCostly, TooManyFrames, UndecodableImage, UnsupportedFormat
from gateway.ingest.decoders.budget import DecodeLimits, Size, film_bytes, memory_limit, peak_bytes
from gateway.ingest.decoders.cost import (
    expected_frame_seconds,
    expected_seconds,
    most_seconds,
    reserve_seconds,
)
from gateway.ingest.decoders.worker import START_SECONDS, AnimationJob, ImageJob, Reply, Worker, WorkerLost
from gateway.ingest.frames import Wanted
from gateway.ingest.image_info import ImageFormat, ImageInfo
from gateway.limits.account import STREAM_SECONDS_PER_SECOND, Account, Spending
from gateway.limits.decoder_slots import DecoderSlots

log = structlog.get_logger("gateway")

LET_FINISH_SECONDS = 0.2
"""A picture that nobody waits for any more may take so long; ending its process and starting another costs as much."""
WALL_SECONDS_PER_CPU_SECOND = 20.0
"""A decoder that neither computes nor answers is ended after this many times the processor time it was given."""
SPARE_SECONDS = 5.0
"""For which a process beyond `count` is kept for the next animation: starting one takes longer than most images."""

_ERRORS = {error.code: error for error in (TooCostly, TooManyFrames, UndecodableImage, UnsupportedFormat)}


class Decoders:
    """Decodes pictures in at most `count` child processes at once.

    Requests take turns, whoever brings many pictures waits longer with each; nor do the decoders hold more than
    `limits.memory_bytes` for them at once. A picture beyond its budget of time or memory ends its process, which costs
    no other picture anything: the next one gets a new process.
    """

    def __init__(self, count: int, *, limits: DecodeLimits) -> None:
        self._limits = limits
        self._count = count
        self._room = DecoderSlots(count, limits.memory_bytes)
        # Who waits for the turn of a film's next frame must not keep pictures from theirs.
        self._films = DecoderSlots(count, limits.memory_bytes)
        self._idle: list[Worker] = []
        self._busy: set[Worker] = set()
        self._trimming: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        # The first picture should not wait for a start; the others start when pictures wait.
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

    def account(self) -> Account:
        """The account of one request."""
        return Account(self._limits.request_cpu_seconds, self._limits.cpu_seconds)

    def stream_account(self) -> Account:
        """The account of one stream."""
        limits = self._limits
        return Account(limits.request_cpu_seconds, limits.cpu_seconds, seconds_per_second=STREAM_SECONDS_PER_SECOND)

    async def decode(self, data: bytes, info: ImageInfo, size: Size, account: Account) -> bytes:
        """An inspected picture as an uncompressed PPM (P6): see `gateway.ingest.decoding.decode`.

        Raises UndecodableImage, TooCostly where it needs more than its budget or nothing is left in its account, and
        Overloaded where no decoder starts. When this ends, however it ends, nothing of the picture is in work any more:
        a cancellation waits for LET_FINISH_SECONDS at most and ends the process then.
        """
        memory_bytes = min(memory_limit(info, len(data)), self._limits.memory_bytes)
        async with (
            self._spending(account, info, len(data), expected_seconds(info, len(data))) as spending,
            self._room.turn(account, min(peak_bytes(info, size), self._limits.memory_bytes)),
            self._worker(account) as worker,
        ):
            job = ImageJob(info, len(data), size, memory_bytes, spending.cpu_seconds)
            answer, picture = await _run(worker, worker.decode(data, job), spending)
        _check(answer, info)
        return picture

    @asynccontextmanager
    async def film(
        self, data: bytes, info: ImageInfo, size: Size, account: Account, wanted: Wanted
    ) -> AsyncIterator["OpenAnimation"]:
        """An inspected, animated file, opened in a process of its own while the context lasts.

        Entering raises as `decode`, and TooManyFrames. Films have a room of their own: `count` at once, within
        `limits.memory_bytes`; their frames take turns with all pictures.
        """
        memory_bytes = min(film_bytes(info, len(data)), self._limits.memory_bytes)
        async with self._films.turn(account, memory_bytes), self._worker(account) as worker:
            film = OpenAnimation(self, worker, info, account, len(data))
            try:
                await film.open(data, AnimationJob(info, len(data), size, wanted, memory_bytes))
                yield film
            finally:
                if not film.ended:  # it is in the process's memory
                    worker.close()

    async def step(
        self,
        worker: Worker,
        account: Account,
        info: ImageInfo,
        nbytes: int,
        work: Callable[[float], Awaitable[tuple[Reply, bytes]]],
    ) -> tuple[Reply, bytes]:
        """Have a film's process do something in its turn, within the processor time that an image would have."""
        async with (
            self._spending(account, info, nbytes, expected_frame_seconds(info)) as spending,
            self._room.turn(account, 0),
        ):
            try:
                answer, picture = await _run(worker, work(spending.cpu_seconds), spending)
            except WorkerLost as lost:
                raise _told(lost) from lost
        _check(answer, info)
        return answer, picture

    @asynccontextmanager
    async def _spending(
        self, account: Account, info: ImageInfo, nbytes: int, expected: float
    ) -> AsyncIterator[Spending]:
        """What an image may take out of its account."""
        async with account.spending(reserve_seconds(expected), most_seconds(info, nbytes)) as spending:
            try:
                yield spending
            finally:
                if spending.spent_seconds:
                    metrics.DECODE_CPU_SECONDS.observe(spending.spent_seconds)

    @asynccontextmanager
    async def _worker(self, account: Account) -> AsyncIterator[Worker]:
        """A worker for one image; if it is lost, the error says why, another takes its place, and `account` pays."""
        try:
            worker = self._living() or Worker(self._limits.image_pixels)
        except OSError as exc:
            raise Overloaded("No process to decode the image could be started; try again later.") from exc
        self._busy.add(worker)
        try:
            yield worker
        except WorkerLost as lost:
            raise _told(lost) from lost
        finally:
            self._busy.discard(worker)
            if not worker.alive():
                # What has ended it took some time as well; its replacement takes as long to start as it did.
                account.charge(worker.charge_seconds() + worker.start_seconds)
                if not self._idle:
                    with suppress(OSError):
                        self._idle.append(Worker(self._limits.image_pixels))  # it starts while others are in work
            else:
                self._idle.append(worker)
                if len(self._idle) > self._count and not self._trimming:  # animations may have as many more
                    self._trimming = asyncio.get_running_loop().call_later(SPARE_SECONDS, self._close_spare)

    def _close_spare(self) -> None:
        """Close one process that no image needs, and another one later."""
        self._trimming = None
        if len(self._idle) > self._count:
            self._idle.pop(0).close()
        if len(self._idle) > self._count:
            self._trimming = asyncio.get_running_loop().call_later(SPARE_SECONDS, self._close_spare)

    def _living(self) -> Worker | None:
        """An idle worker; whatever ended one while it had nothing to do, the next picture is not to blame for it."""
        while self._idle:
            worker = self._idle.pop()
            if worker.alive():
                return worker
            log.warning("decoder_lost", reason="idle", returncode=worker.close())
        return None


class OpenAnimation:
    """The frames of one open film, one at a time."""

    def __init__(
        self,
        decoders: Decoders,
        worker: Worker,
        info: ImageInfo,
        account: Account,
        nbytes: int,
    ) -> None:
        self._decoders = decoders
        self._worker = worker
        self.info = info
        """What is known of the file; of a video that is not much before it is open."""
        self._account = account
        self._nbytes = nbytes
        self.ended = True
        """Whether the process holds nothing of it."""

    async def open(self, data: bytes, job: AnimationJob) -> None:
        """See what the file has; raises what Decoders.film does."""
        answer, _ = await self._step(lambda cpu_seconds: self._worker.open_film(data, job, cpu_seconds))
        if self.info.format is ImageFormat.VIDEO:
            self.info = replace(self.info, width=answer["width"], height=answer["height"])

    async def next(self) -> "AnimationFrame | None":
        """The next frame that is wanted, as an uncompressed PPM (P6); None behind the last one. Raises as `decode`."""
        while True:
            answer, picture = await self._step(lambda cpu_seconds: self._worker.next_frame(self.info, cpu_seconds))
            if answer["ends"]:
                self.ended = True
                return None
            if picture:
                return AnimationFrame(answer["frame"], answer["shown_seconds"], picture)

    async def _step(self, work: Callable[[float], Awaitable[tuple[Reply, bytes]]]) -> tuple[Reply, bytes]:
        begun = False

        def begin(cpu_seconds: float) -> Awaitable[tuple[Reply, bytes]]:
            nonlocal begun
            begun, self.ended = True, False
            return work(cpu_seconds)

        try:
            return await self._decoders.step(self._worker, self._account, self.info, self._nbytes, begin)
        except ImageError:
            self.ended = self.ended or begun  # by the process itself, if it lives
            raise


@dataclass(frozen=True, slots=True)
class AnimationFrame:
    """One frame: its number in the file, when it is shown, and its picture."""

    index: int
    seconds: float
    picture: bytes


def _told(lost: WorkerLost) -> ImageError:
    """What the client hears of a process that ended with its picture; the operator hears it here."""
    metrics.DECODERS_LOST.labels(lost.reason).inc()
    log.warning("decoder_lost", reason=lost.reason, returncode=lost.returncode)
    return UndecodableImage() if lost.reason == "crash" else TooCostly()


def _check(answer: Reply, info: ImageInfo) -> None:
    """Raise the error that a process answers with."""
    if answer["error"]:
        if answer["cause"]:
            log.warning("decoder_fault", cause=answer["cause"], format=info.format.value)
        raise _ERRORS.get(answer["error"], UndecodableImage)(answer["message"] or None)


async def _run(worker: Worker, work: Awaitable[tuple[Reply, bytes]], spending: Spending) -> tuple[Reply, bytes]:
    """Have something done by a process, and see what it took; what is cancelled has ended when this ends."""
    # In a task that is never cancelled: an answer that came at the same moment would be taken for the next picture's.
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
    """Wait for `task` for so long at most, however often the waiting one is cancelled."""
    now = asyncio.get_running_loop().time
    end = None if seconds is None else now() + seconds
    with CancelScope(shield=True):
        while not task.done() and (end is None or now() < end):
            with suppress(asyncio.CancelledError):
                await asyncio.wait([task], timeout=end and max(end - now(), 0))
