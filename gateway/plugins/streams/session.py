"""One stream: classifies frames as they arrive, a few at a time, and sends the results in order."""

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from collections.abc import Sequence as TextSequence
from dataclasses import dataclass, field, replace
from typing import Any

from gateway.errors import GatewayError, ImageError, InvalidParameter, Overloaded, StreamIdle, Unauthorized
from gateway.inference.backend import FrameSequence, SequenceScores
from gateway.inference.request_spec import RequestSpec, RequestStats
from gateway.inference.result import Result, Row, Selection
from gateway.inference.service import InferenceService
from gateway.inference.tasks import Tasks
from gateway.ingest import json_text
from gateway.ingest.json_text import JsonError
from gateway.ingest.upload import Upload
from gateway.limits.account import Account
from gateway.limits.pools import IDLE_SECONDS, PoolLease
from gateway.metrics import STREAMS_STOPPED
from gateway.plugins.streams import metrics
from gateway.plugins.streams.messages import HeldLabel, frame_message, predictions_of, sequence_member
from gateway.plugins.streams.options import Drop, Smoothing, StreamParameters
from gateway.settings import STREAM_IDLE_SECONDS, Settings
from gateway.timing import Deadline, TimeSlice

IN_FLIGHT = 2
"""Concurrent frames of one stream: one is received while the other is classified."""
FRAMES_WAITING = 2
"""Frames of one stream that may wait: with more, a camera's answers would be older."""
MAX_END_BYTES = 64
"""Bytes of the text message that ends a stream, with spaces."""
DROPPED_PER_SECOND, FAULTY_PER_SECOND = 200, 20
"""Rate limits of one stream for dropped frames, and for frames that are no usable image: beyond a first burst, the
client is read more slowly. A frame of one byte costs the service several hundred microseconds. No camera has these
rates."""
KEY_CHECK_SECONDS = 5.0
"""Interval in which the API key of an open stream is checked; the stream ends if the key was removed."""
Receive = Callable[[], Awaitable[bytes | str | None]]
"""The next message of the client: a frame, a text, or None at its end. Raises the errors that end the stream."""
Send = Callable[[bytes], Awaitable[None]]
"""Sends a JSON message; waits if the client reads slowly."""


@dataclass(slots=True)
class StreamStats:
    """Counts of the frames of one stream, by outcome."""

    answered: int = 0
    failed: int = 0
    dropped: int = 0
    dropped_since_result: int = 0


@dataclass(slots=True)
class StreamFrame:
    """A frame in progress."""

    number: int
    data: bytes = field(repr=False)
    came_at: float
    result: "asyncio.Future[Result | Exception]"


class StreamSession:
    """Classifies the frames of one client, IN_FLIGHT at a time, and sends the results in the order of the frames.

    Each frame is a service request with one image: it is inspected, decoded, admitted and retried like any upload, with
    the same limits. `buffer` counts the bytes of waiting frames until they are admitted. At most FRAMES_WAITING frames
    wait: beyond that the oldest is dropped, or the client waits. The stream ends with StreamIdle after
    STREAM_IDLE_SECONDS without a frame.
    """

    def __init__(
        self,
        service: InferenceService,
        settings: Settings,
        buffer: PoolLease,
        parameters: StreamParameters,
        spec: RequestSpec,
        is_allowed: Callable[[], bool] = lambda: True,
    ) -> None:
        self._service = service
        self._buffer = buffer
        self._parameters = parameters
        self._selection = Selection.of(
            parameters.top_k, parameters.threshold, parameters.labels, settings.default_top_k
        )
        self._spec = spec
        """The specification of every frame; each has other statistics."""
        self._model = spec.model_name, spec.model_version
        self._is_allowed = is_allowed
        self._sequence: FrameSequence | None = None
        self._held = HeldLabel()
        self._labels: dict[str, TextSequence[str]] = {}
        limits = service.decoders.limits
        self._account = Account(limits.request_cpu_seconds, limits.cpu_seconds, client=spec.caller, is_stream=True)
        self.stats = StreamStats()
        self._loop = asyncio.get_running_loop()
        self._regained_at = self._loop.time()
        """Time up to which the account has regained processor time."""
        self._tasks = Tasks()
        self._waiting: deque[StreamFrame] = deque()
        self._pending_bytes = 0
        """Bytes of frames that no longer wait but are not admitted, or that wait to be queued."""
        self._changed = asyncio.Event()
        self._all_read = False
        self._slots = asyncio.Semaphore(IN_FLIGHT)
        self._line: asyncio.Queue[StreamFrame | None] = asyncio.Queue()
        self._open = 0
        """Frames that have arrived, and that are neither answered nor dropped."""
        self._active_at = self._loop.time()
        """Time at which the last frame arrived, or its result was sent."""
        self._sending_since: float | None = None
        self._next_at = -math.inf
        """Time at which the next message may be read, by DROPPED_PER_SECOND and FAULTY_PER_SECOND."""
        self._number = 0
        self._failure: Exception | None = None
        self._ended = asyncio.Event()

    @property
    def idle_seconds(self) -> float:
        """Time since the client sent a frame or read a result; 0 while a frame is in progress."""
        unread_seconds = 0.0 if self._sending_since is None else self._loop.time() - self._sending_since
        return max(self._without_frames_seconds, unread_seconds)

    @property
    def is_idle(self) -> bool:
        """See PoolClient."""
        return self.idle_seconds >= IDLE_SECONDS

    def eviction_score(self, held: int) -> float:  # noqa: ARG002  # each has one slot
        """See PoolClient."""
        return self.idle_seconds

    @property
    def _without_frames_seconds(self) -> float:
        return 0.0 if self._open else self._loop.time() - self._active_at

    def evict(self, error: GatewayError) -> None:
        """Make `serve` raise an error, now or when it is called."""
        self._fail(error)

    async def check_model(self) -> None:
        """Check that the model exists; raises ModelNotFound, and the other errors of Backend.labels."""
        await self._service.backend.labels(*self._model)

    async def open(self) -> None:
        """Begin the sequence; raises ModelNotFound."""
        if self._parameters.smoothing is not Smoothing.NONE:
            self._sequence = await self._service.backend.sequence(*self._model)

    async def serve(self, receive: Receive, send: Send) -> None:
        """Serve until the client ends the stream and the results of all its frames are sent.

        Raises StreamIdle, Unauthorized, the error of `evict`, a frame's RequestError, and the errors of `receive` and
        `send`. In each case the sequence in Triton is ended, and all tasks of the stream are finished.
        """
        try:
            async with self._tasks:
                self._start(self._read, receive)
                self._start(self._work)
                self._start(self._send_results, send)
                self._start(self._watch_key)
                await self._ended.wait()
            if self._failure is not None:
                raise self._failure
        finally:
            self._failure = None  # its traceback keeps the stream
            self._buffer.hold(0)
            await self.close()

    async def close(self) -> None:
        """End the sequence in Triton; only needed if `serve` is not called."""
        if self._sequence is not None:
            await self._service.uncancelled.run(self._sequence.close())

    def _start(self, work: Callable[..., Awaitable[None]], *arguments: object) -> None:
        """Do some of the stream's work in a new task; an exception ends the stream."""

        async def guarded() -> None:
            try:
                await work(*arguments)
            except Exception as failure:  # raised again by `serve`
                self._fail(failure)

        self._tasks.start(guarded())

    def _fail(self, failure: Exception) -> None:
        self._failure = self._failure or failure
        self._ended.set()

    async def _watch_key(self) -> None:
        """Raise Unauthorized once the API key of the stream is removed."""
        while True:
            await asyncio.sleep(KEY_CHECK_SECONDS)
            if not self._is_allowed():
                STREAMS_STOPPED.labels("key_removed").inc()
                raise Unauthorized("The API key with which this stream was opened has been removed.")

    def _slow_down(self, per_second: int, count: int = 1) -> None:
        """Delay reading after messages beyond `per_second`; a burst of one second's messages is not delayed."""
        self._next_at = max(self._next_at, self._loop.time() - 1) + count / per_second

    async def _read(self, receive: Receive) -> None:
        """Queue the frames of the client until it ends the stream."""
        time_slice = TimeSlice()
        while True:
            if (seconds := self._next_at - self._loop.time()) > 0:
                await asyncio.sleep(seconds)
            await time_slice.pause_if_over()  # so that streams that have waited for the same time continue one by one
            message = await self._receive(receive)
            if isinstance(message, bytes):
                await self._enqueue(message)
                continue
            if message is not None:
                _check_end(message)
            self._all_read = True
            self._changed.set()
            return

    async def _receive(self, receive: Receive) -> bytes | str | None:
        """The client's next message; raises StreamIdle."""
        limit_seconds = STREAM_IDLE_SECONDS
        while (left_seconds := limit_seconds - self._without_frames_seconds) > 0:
            try:
                async with asyncio.timeout(left_seconds):
                    return await receive()
            except TimeoutError:
                continue
        STREAMS_STOPPED.labels("idle").inc()
        raise StreamIdle(f"No frame came for {limit_seconds:g} s.", limit="stream_idle_seconds", value=limit_seconds)

    async def _enqueue(self, data: bytes) -> None:
        """Queue a frame; where too many wait, the oldest are dropped, or the client waits if it forbids drops."""
        self._open += 1
        self._active_at = self._loop.time()
        frame = StreamFrame(self._number, data, time.perf_counter(), self._loop.create_future())
        self._number += 1
        self._waiting.append(frame)
        dropped = 0
        most_waiting = FRAMES_WAITING + 1 if self._parameters.drop is Drop.NEVER else FRAMES_WAITING
        # While the upload buffer is full, only the newest frame is kept, which matters most for a camera, or none.
        for most in (most_waiting, 1, 0):
            while len(self._waiting) > most:
                self._waiting.popleft()
                dropped += 1
            try:
                self._count_bytes()
                break
            except Overloaded:
                continue
        self._changed.set()
        if dropped:
            self._open -= dropped
            self.stats.dropped += dropped
            self.stats.dropped_since_result += dropped
            metrics.STREAM_FRAMES.labels("dropped").inc(dropped)
            self._slow_down(DROPPED_PER_SECOND, dropped)
        while len(self._waiting) > FRAMES_WAITING:  # no more messages are read meanwhile
            self._changed.clear()
            await self._changed.wait()

    def _count_bytes(self) -> None:
        self._buffer.hold(sum(len(frame.data) for frame in self._waiting) + self._pending_bytes)

    async def _work(self) -> None:
        """Start the classification of frames, at most IN_FLIGHT at a time."""
        while True:
            await self._slots.acquire()
            while not self._waiting:
                if self._all_read:
                    self._line.put_nowait(None)
                    return
                self._changed.clear()
                await self._changed.wait()
            frame = self._waiting.popleft()
            self._pending_bytes += len(frame.data)
            self._changed.set()
            self._line.put_nowait(frame)
            self._start(self._classify, frame)

    async def _classify(self, frame: StreamFrame) -> None:
        """Classify one frame in a separate request, and set its result, or the error that ends the stream."""
        data, frame.data = frame.data, b""

        async def upload() -> AsyncGenerator[Upload, None]:
            try:
                yield Upload(frame.number, "", data)
            finally:  # the frame is admitted or abandoned
                self._pending_bytes -= len(data)
                self._count_bytes()

        since, self._regained_at = self._regained_at, self._loop.time()
        self._account.regain(self._regained_at - since)
        spec = replace(self._spec, stats=RequestStats())
        outcome: Result | Exception
        results: list[Result] = []
        try:
            await self._service.run(upload(), spec, results.append, account=self._account)
            (outcome,) = results
        except Overloaded as error:
            outcome = Result(0, "", row=Row(error=error))
        except Exception as error:  # raised again where the result is sent
            outcome = error
        frame.result.set_result(outcome)

    async def _send_results(self, send: Send) -> None:
        """Send the results in the order of the frames, and end the stream after the last one."""
        while (frame := await self._line.get()) is not None:
            outcome = await frame.result
            if isinstance(outcome, Exception):
                raise outcome
            dropped, self.stats.dropped_since_result = self.stats.dropped_since_result, 0
            message = await self._message(frame, outcome, dropped)
            self._sending_since = self._loop.time()
            try:
                await send(message)
            finally:
                self._sending_since = None
            self._open -= 1
            self._active_at = self._loop.time()
            self._slots.release()
        self._ended.set()

    async def _message(self, frame: StreamFrame, result: Result, dropped: int) -> bytes:
        predictions: list[dict[str, Any]] = []
        sequence: dict[str, Any] | None = None
        if result.error is None:
            assert result.row.scores is not None
            labels = await self._labels_of(result.row.model_version)
            predictions = predictions_of(result.row.scores, labels, self._selection, multi_label=result.row.multi_label)
            if self._parameters.smoothing is not Smoothing.NONE:
                sequence = await self._sequence_member(result, labels)
            self.stats.answered += 1
        else:
            self.stats.failed += 1
            if isinstance(result.error, ImageError):
                self._slow_down(FAULTY_PER_SECOND)
        seconds = time.perf_counter() - frame.came_at
        metrics.STREAM_SECONDS.observe(seconds)
        metrics.STREAM_FRAMES.labels("answered" if result.error is None else "failed").inc()
        return frame_message(
            frame.number,
            result,
            predictions=predictions,
            sequence=sequence,
            dropped=dropped,
            latency_seconds=seconds,
        )

    async def _labels_of(self, version: str) -> TextSequence[str]:
        """The labels of the version that classified the frame."""
        if version not in self._labels:
            self._labels = {version: await self._service.backend.labels(*self._model)}
        return self._labels[version]

    async def _sequence_member(self, result: Result, labels: TextSequence[str]) -> dict[str, Any]:
        """Add a frame to the sequence; returns the member of the result: the sequence's classes, or the error."""
        assert result.row.scores is not None
        try:
            if self._sequence is None:
                self._sequence = await self._service.backend.sequence(*self._model)
            deadline = Deadline.after(self._spec.timeout_seconds)
            alpha = {"alpha": self._parameters.alpha}
            state: SequenceScores = await self._sequence.add(result.row.scores, alpha, deadline, self._spec.request_id)
        except GatewayError as error:
            return sequence_member(None, [], error)
        smoothed = self._held.predictions(
            state.scores, labels, self._selection, self._parameters.margin, multi_label=result.row.multi_label
        )
        return sequence_member(state, smoothed, None)


def _check_end(text: str) -> None:
    """Raise InvalidParameter if a text message is not the end of the stream."""
    try:
        given = json_text.decode(text, max_bytes=MAX_END_BYTES)
    except JsonError:
        given = None
    if given != {"end": True}:
        raise InvalidParameter(
            'The only text message is {"end": true}. Frames are binary messages, and parameters are in the query.'
        )
