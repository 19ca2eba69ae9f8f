"""The decoders of one gateway process: a few children, and fair turns at them."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import structlog
from anyio import CancelScope

from gateway import metrics
from gateway.errors import Overloaded, TooCostly, UndecodableImage, UnsupportedFormat
from gateway.ingest.decoders.budget import Account, DecodeLimits, Size, peak_bytes
from gateway.ingest.decoders.worker import START_SECONDS, Answer, Job, Worker, WorkerLost
from gateway.ingest.image_info import ImageInfo

log = structlog.get_logger("gateway")

LET_FINISH_SECONDS = 0.2
"""A picture that nobody waits for any more may take so long; ending its process and starting another costs as much."""
WALL_SECONDS_PER_CPU_SECOND = 20.0
"""A decoder that neither computes nor answers is ended after this many times the processor time it was given."""


_ERRORS = {error.code: error for error in (TooCostly, UndecodableImage, UnsupportedFormat)}


class Decoders:
    """Decodes pictures in at most `count` child processes at once.

    Requests take turns, whoever brings many pictures waits longer with each; nor do the decoders hold more than
    `limits.memory_bytes` for them at once. A picture beyond its budget of time or memory ends its process, which costs
    no other picture anything: the next one gets a new process.
    """

    def __init__(self, count: int, *, limits: DecodeLimits) -> None:
        self._limits = limits
        self._free = count
        self._free_bytes = limits.memory_bytes
        self._idle: list[Worker] = []
        self._busy: set[Worker] = set()
        self._turns = _Turns()

    async def __aenter__(self) -> Self:
        # The first picture should not wait for a start; the others start when pictures wait.
        self._idle.append(Worker(self._limits.image_pixels))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for worker in self._busy:
            worker.interrupt()
        while self._idle:
            self._idle.pop().close()

    def account(self) -> Account:
        """What one request's pictures may overrun by, all together."""
        return Account(self._limits)

    async def decode(self, data: bytes, info: ImageInfo, size: Size, account: Account) -> bytes:
        """An inspected picture as an uncompressed PPM (P6): see `gateway.ingest.decoding.decode`.

        Raises UndecodableImage, TooCostly where it needs more than its budget, Overloaded where no decoder starts. When
        this ends, however it ends, nothing of the picture is in work any more: a cancellation waits for
        LET_FINISH_SECONDS at most and ends the process then.
        """
        async with self._turn(account, min(peak_bytes(info, size), self._limits.memory_bytes)):
            budget = account.lend(info, len(data))
            job = Job(info, len(data), size, budget.memory_bytes, budget.cpu_seconds)
            spent_seconds = budget.cpu_seconds
            try:
                async with self._worker() as worker:
                    answer, picture = await _run(worker, data, job)
                spent_seconds = float(answer["seconds"])
            finally:
                account.settle(budget, spent_seconds)
                metrics.DECODE_CPU_SECONDS.observe(spent_seconds)
        if answer["error"]:
            if answer["cause"]:
                log.warning("decoder_fault", cause=answer["cause"], format=info.format.value)
            raise _ERRORS.get(answer["error"], UndecodableImage)(answer["message"] or None)
        return picture

    @asynccontextmanager
    async def _turn(self, account: Account, nbytes: int) -> AsyncIterator[None]:
        """A decoder, and room for `nbytes`."""
        turn = self._turns.join(account, nbytes)
        self._call_next()
        try:
            await turn.come
        except asyncio.CancelledError:
            if turn.come.cancelled():
                self._call_next()  # others may have waited behind it
            else:  # it came at the same moment
                self._give_back(nbytes)
            raise
        try:
            yield
        finally:
            self._give_back(nbytes)

    def _give_back(self, nbytes: int) -> None:
        self._free += 1
        self._free_bytes += nbytes
        metrics.DECODING_BYTES.dec(nbytes)
        self._call_next()

    def _call_next(self) -> None:
        while (turn := self._turns.first()) and self._free and turn.nbytes <= self._free_bytes:
            self._free -= 1
            self._free_bytes -= turn.nbytes
            metrics.DECODING_BYTES.inc(turn.nbytes)
            self._turns.leave_first()
            turn.come.set_result(None)

    @asynccontextmanager
    async def _worker(self) -> AsyncIterator[Worker]:
        """A worker for one picture; where it is lost the client hears why, and another takes its place."""
        try:
            worker = self._living() or Worker(self._limits.image_pixels)
        except OSError as exc:
            raise Overloaded("No process to decode the image could be started; try again later.") from exc
        self._busy.add(worker)
        try:
            yield worker
        except WorkerLost as lost:
            metrics.DECODERS_LOST.labels(lost.reason).inc()
            log.warning("decoder_lost", reason=lost.reason, returncode=lost.returncode)
            raise (UndecodableImage if lost.reason == "crash" else TooCostly) from lost
        finally:
            self._busy.discard(worker)
            if worker.alive():
                self._idle.append(worker)
            elif not self._idle:
                with suppress(OSError):
                    self._idle.append(Worker(self._limits.image_pixels))  # it starts while others are in work

    def _living(self) -> Worker | None:
        """An idle worker; whatever ended one while it had nothing to do, the next picture is not to blame for it."""
        while self._idle:
            worker = self._idle.pop()
            if worker.alive():
                return worker
            log.warning("decoder_lost", reason="idle", returncode=worker.close())
        return None


async def _run(worker: Worker, data: bytes, job: Job) -> tuple[Answer, bytes]:
    """Have the picture decoded; what is cancelled has ended when this ends."""
    # In a task that is never cancelled: an answer that came at the same moment would be taken for the next picture's.
    task = asyncio.ensure_future(worker.decode(data, job))
    try:
        await asyncio.wait([task], timeout=START_SECONDS + WALL_SECONDS_PER_CPU_SECOND * job.cpu_seconds)
    except asyncio.CancelledError:
        await _wait_uninterrupted(task, LET_FINISH_SECONDS)
        raise
    finally:
        if not task.done():
            worker.interrupt()
            await _wait_uninterrupted(task, None)
        task.exception()  # it is seen, even where this ends by a cancellation
    return task.result()


async def _wait_uninterrupted(task: "asyncio.Task[Any]", seconds: float | None) -> None:
    """Wait for `task` for so long at most, however often the waiting one is cancelled."""
    now = asyncio.get_running_loop().time
    end = None if seconds is None else now() + seconds
    with CancelScope(shield=True):
        while not task.done() and (end is None or now() < end):
            with suppress(asyncio.CancelledError):
                await asyncio.wait([task], timeout=end and max(end - now(), 0))


@dataclass(frozen=True, slots=True)
class _Turn:
    """A picture that waits for a decoder and for room."""

    nbytes: int
    come: "asyncio.Future[None]"


class _Turns:
    """Who waits for a decoder: one turn for each request, round and round."""

    def __init__(self) -> None:
        self._waiting: dict[Account, deque[_Turn]] = {}

    def join(self, account: Account, nbytes: int) -> _Turn:
        """Stand in the queue; the turn has come when its future is done."""
        turn = _Turn(nbytes, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(account, deque()).append(turn)
        return turn

    def first(self) -> _Turn | None:
        """Whose turn is next; None where nobody waits."""
        while self._waiting:
            turn = next(iter(self._waiting.values()))[0]
            if not turn.come.done():
                return turn
            self.leave_first()
        return None

    def leave_first(self) -> None:
        """Take the first one out of the queue; its request's next one goes behind the others."""
        account, turns = next(iter(self._waiting.items()))
        del self._waiting[account]
        turns.popleft()
        if turns:
            self._waiting[account] = turns
