"""The connection of the service to its writer: a bounded queue, a socket, and a process that is replaced if it ends."""

import asyncio
import contextlib
import json
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable

import structlog

from gateway_predictions import metrics, writer

log = structlog.get_logger("gateway")

CLOSING_SECONDS = writer.FINAL_SECONDS + 1.0
"""Longest time of `close`: for the queue to be sent and the last rows to be written."""
RESTART_SECONDS = (0.5, 30.0)
"""Pause before a writer that ended is replaced, which doubles each time, and the longest one."""
STEADY_SECONDS = 60.0
"""A writer that ran for this long is replaced after the shortest pause again."""
MAX_REPORT_BYTES = 2**16
GATHER_SECONDS = 0.05
"""How long rows gather, so that few of them do not cost both processes a wake-up each."""
SENT_BYTES = 2**16
"""Bytes after which gathered rows are sent."""
QUEUE_FULL, WRITER_LOST, SHUTDOWN = "queue_full", "writer_lost", "shutdown"

Pieces = list[bytes]
Encode = Callable[[], Awaitable[Pieces]]
"""Makes the pieces of a message, when it is its turn."""


class WriterLink:
    """Sends rows to a writer in their order, without delaying their callers: what exceeds the queue is dropped.

    Every row that `add` accepts is counted once: as written, or as dropped by a reason.
    """

    def __init__(self, options: writer.WriterOptions, max_queue_bytes: int) -> None:
        self._options = options
        self._max_bytes = max_queue_bytes
        self._queue: deque[tuple[Encode, int]] = deque()
        self._nbytes = 0
        self._added = asyncio.Event()
        self._closing = False
        self._task: asyncio.Task[None] | None = None
        self._unwritten = 0
        """Rows that the present writer has received, or is receiving, and has not reported as written."""
        self._failing = False

    def start(self) -> None:
        """Start the writer, inside the event loop."""
        self._task = asyncio.create_task(self._run())

    def add(self, encode: Encode, nbytes: int) -> bool:
        """Queue a row that holds `nbytes` until it is sent; False if that would exceed the queue, and it is dropped."""
        if self._closing or self._nbytes + nbytes > self._max_bytes:
            _count(SHUTDOWN if self._closing else QUEUE_FULL, 1)
            return False
        self._queue.append((encode, nbytes))
        self._nbytes += nbytes
        metrics.PREDICTION_LOG_QUEUE_ROWS.inc()
        metrics.PREDICTION_LOG_QUEUE_BYTES.inc(nbytes)
        self._added.set()
        return True

    async def close(self) -> None:
        """Send the queue and wait until it is written, at most CLOSING_SECONDS; the rest is dropped."""
        self._closing = True
        self._added.set()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=CLOSING_SECONDS)
            self._task.cancel()
            await asyncio.wait([self._task])
        while self._queue:
            _, nbytes = self._queue.popleft()
            self._release(nbytes)
            _count(SHUTDOWN, 1)

    async def _run(self) -> None:
        """Keep a writer running; at the end, wait until it has ended."""
        pause, longest = RESTART_SECONDS
        while not (self._closing and not self._queue):
            began = time.monotonic()
            try:
                await self._serve()
            except OSError as exc:  # no process, memory or file for a writer: there may be later
                reason = str(exc) or type(exc).__name__
                # The reason is the machine's, not the code's.
                log.error("prediction_log_writer_not_started", reason=reason)  # noqa: TRY400
            if self._closing:
                return
            metrics.PREDICTION_LOG_FAILURES.labels("writer").inc()
            if time.monotonic() - began > STEADY_SECONDS:
                pause = RESTART_SECONDS[0]
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest)

    async def _serve(self) -> None:
        """Run one writer to its end."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)  # noqa: FBT003  # the standard library's signature
        with ours:
            with theirs:
                process = writer.start(theirs, self._options)
            sending = asyncio.create_task(self._send(ours))
            try:
                await self._receive(ours)
            finally:
                sending.cancel()
                await asyncio.wait([sending])
                process.kill()
                code = process.wait()
                lost, self._unwritten = self._unwritten, 0
                if lost or not self._closing:
                    _count(SHUTDOWN if self._closing else WRITER_LOST, lost)
                    log.error("prediction_log_writer_lost", exit_code=code, rows=lost)

    async def _send(self, connection: socket.socket) -> None:
        """Send the queue until the service ends; then close this direction."""
        with contextlib.suppress(OSError):  # the writer has ended, which `_receive` notices
            while True:
                while self._queue:
                    await self._send_next(connection)
                if self._closing:
                    connection.shutdown(socket.SHUT_WR)
                    return
                self._added.clear()
                await self._added.wait()
                if not self._closing:
                    await asyncio.sleep(GATHER_SECONDS)

    async def _send_next(self, connection: socket.socket) -> None:
        """Send the next messages, up to SENT_BYTES and one more. Until then, their rows count as waiting."""
        pieces: Pieces = []
        size, taken = 0, list[int]()
        try:
            while self._queue and size < SENT_BYTES:
                # Counted before it is sent: an interrupted row is lost with its writer.
                encode, nbytes = self._queue.popleft()
                taken.append(nbytes)
                self._unwritten += 1
                try:
                    message = await encode()
                except Exception:  # must not end the log
                    log.exception("prediction_log_fault")
                    self._unwritten -= 1
                    _count("fault", 1)
                    continue
                pieces += message
                size += sum(map(len, message))
            await asyncio.get_running_loop().sock_sendall(connection, b"".join(pieces))
        finally:
            for nbytes in taken:
                self._release(nbytes)

    async def _receive(self, connection: socket.socket) -> None:
        """Read the writer's reports until it ends."""
        loop, buffer = asyncio.get_running_loop(), b""
        with contextlib.suppress(ConnectionError):
            while data := await loop.sock_recv(connection, MAX_REPORT_BYTES):
                *lines, buffer = (buffer + data).split(b"\n")
                for line in lines:
                    self._note(json.loads(line))

    def _note(self, report: dict[str, int | str]) -> None:
        match report:
            case {"written": int(written)}:
                self._unwritten -= written
                _count("written", written)
                if self._failing:
                    self._failing = False
                    log.info("prediction_log_writes_again", url=self._options.url)
            case {"kept": reason}:
                metrics.PREDICTION_LOG_FAILURES.labels("retention").inc()
                log.error("prediction_log_not_shortened", url=self._options.url, reason=reason)
            case {"failed": reason}:
                metrics.PREDICTION_LOG_FAILURES.labels("sink").inc()
                if not self._failing:
                    self._failing = True
                    log.error("prediction_log_not_written", url=self._options.url, reason=reason)

    def _release(self, nbytes: int) -> None:
        self._nbytes -= nbytes
        metrics.PREDICTION_LOG_QUEUE_ROWS.dec()
        metrics.PREDICTION_LOG_QUEUE_BYTES.dec(nbytes)


def _count(outcome: str, rows: int) -> None:
    metrics.PREDICTION_LOG_ROWS.labels(outcome).inc(rows)
