"""One stream: classifies frames as they arrive, and sends the results in order."""

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from collections.abc import Sequence as TextSequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from gateway.deadline import Deadline
from gateway.errors import GatewayError, ImageError, InvalidParameter, Overloaded, Unauthorized
from gateway.inference.request_spec import RequestSpec
from gateway.inference.result import Result
from gateway.inference.sequence import FrameSequence, SequenceScores
from gateway.inference.service import InferenceService
from gateway.ingest import json_text
from gateway.ingest.json_text import JsonError
from gateway.ingest.upload import Upload
from gateway.limits.caller import ANYONE, Caller, Charges
from gateway.limits.pools import PoolLease
from gateway.metrics import STREAMS_STOPPED
from gateway.plugins.streams import metrics
from gateway.plugins.streams.held_label import HeldLabel
from gateway.plugins.streams.messages import frame_message, predictions_of, sequence_member
from gateway.plugins.streams.options import Smoothing, StreamParameters
from gateway.plugins.streams.ordered_stream import OrderedStream
from gateway.plugins.streams.stream_account import StreamAccount
from gateway.plugins.streams.waiting import StreamFrame, WaitingFrames
from gateway.settings import Settings
from gateway.time_slices import TimeSlice

Receive = Callable[[], Awaitable[bytes | str | None]]
"""The next message of the client: a frame, a text, or None at its end. Raises the errors that end the stream."""
MAX_END_BYTES = 64
"""Bytes of the text message that ends a stream, with spaces."""
DROPPED_PER_SECOND, FAULTY_PER_SECOND = 200, 20
"""Rate limits of one stream for frames that are dropped, and frames that are no usable image: after the first ones, a
client that sends more is read more slowly. A frame that costs its client one byte costs the service several hundred
microseconds. No camera has these rates."""
KEY_CHECK_SECONDS = 5.0
"""Interval in which the API key of an open stream is checked; the stream ends if the key was removed."""
Send = Callable[[bytes], Awaitable[None]]
"""Sends a JSON message; waits if the client reads slowly."""


@dataclass(slots=True)
class StreamStats:
    """Counts of the frames of one stream, by outcome."""

    answered: int = 0
    failed: int = 0
    dropped: int = 0
    restarted: int = 0
    dropped_since_result: int = 0

    def drop(self) -> None:
        """Count a frame that is dropped."""
        self.dropped += 1
        self.dropped_since_result += 1
        metrics.STREAM_FRAMES.labels("dropped").inc()


class StreamSession(OrderedStream[StreamFrame]):
    """Classifies the frames of one client, a few at a time, and sends the results in the order of the frames.

    Each frame is a service request with one image: it is inspected, decoded, admitted and retried like any upload, with
    the same limits. `buffer` counts the bytes of waiting frames until they are admitted.
    """

    def __init__(
        self,
        service: InferenceService,
        settings: Settings,
        buffer: PoolLease,
        parameters: StreamParameters,
        *,
        model: tuple[str, str],
        request_id: str,
        is_allowed: Callable[[], bool] = lambda: True,
        key: str = "",
        address: str = "",
        fields: Mapping[str, str] | None = None,
        caller: Caller = ANYONE,
    ) -> None:
        super().__init__()
        self._key, self._address, self._fields = key, address, fields or {}
        self._service = service
        self._settings = settings
        self._buffer = buffer
        self._parameters = parameters
        self._model_name, self._model_version = model
        self._request_id = request_id
        self._is_allowed = is_allowed
        self._caller = caller
        self._sequence: FrameSequence | None = None
        self._held = HeldLabel()
        self._labels: dict[str | None, TextSequence[str]] = {}
        self.stats = StreamStats()
        self._waiting = WaitingFrames(buffer)
        limits = service.tools.decoders.limits
        self._account = StreamAccount(limits.request_cpu_seconds, limits.cpu_seconds, client=caller)
        self._sending_since: float | None = None
        self._next_at = -math.inf
        """Time at which the next message may be read, by DROPPED_PER_SECOND and FAULTY_PER_SECOND."""
        self._number = 0

    @property
    def unread_seconds(self) -> float:
        """For how long the client has not read a message."""
        return 0.0 if self._sending_since is None else asyncio.get_running_loop().time() - self._sending_since

    async def check_model(self) -> None:
        """Check that the model exists; raises ModelNotFound, and the other errors of Backend.labels."""
        await self._service.backend.labels(self._model_name, self._model_version)

    async def open(self) -> None:
        """Begin the sequence; raises ModelNotFound."""
        backend = self._service.backend
        if self._parameters.smoothing is not Smoothing.NONE:
            self._sequence = await backend.sequence(self._model_name, self._model_version)

    async def serve(self, receive: Receive, send: Send) -> None:
        """Serve until the client ends the stream and the results of all its frames are sent.

        Raises StreamIdle, Unauthorized, the error of `evict`, a frame's RequestError, and the errors of `receive` and
        `send`. In each case the sequence in Triton is ended, and all tasks of the stream are finished.
        """
        self._send = send
        try:
            await self.run(partial(self._read, receive), self._work, self._watch_key)
        finally:
            self._buffer.hold(0)
            await self.close()

    async def close(self) -> None:
        """End the sequence in Triton; only needed if `run` is not called."""
        if self._sequence is not None:
            await self._service.tools.uncancelled.run(self._sequence.close())

    async def _watch_key(self) -> None:
        """Raise Unauthorized once the API key of the stream is removed."""
        while True:
            await asyncio.sleep(KEY_CHECK_SECONDS)
            if not self._is_allowed():
                STREAMS_STOPPED.labels("key_removed").inc()
                raise Unauthorized("The API key with which this stream was opened has been removed.")

    def _slow_down(self, per_second: int, count: int = 1) -> None:
        """Read later what follows messages that may come `per_second`; a second's worth of them is free."""
        self._next_at = max(self._next_at, asyncio.get_running_loop().time() - 1) + count / per_second

    async def _pace(self) -> None:
        """Wait until the next message may be read."""
        if (seconds := self._next_at - asyncio.get_running_loop().time()) > 0:
            await asyncio.sleep(seconds)

    async def _read(self, receive: Receive) -> None:
        time_slice = TimeSlice()
        while True:
            await self._pace()
            await time_slice.pause_if_over()  # so that streams that have waited for the same time go on one by one
            message = await self.receive(receive)
            if message is None:
                self._waiting.end()
                return
            if isinstance(message, str):
                _check_end(message)
                self._waiting.end()
                return
            await self._enqueue(message)

    async def _enqueue(self, data: bytes) -> None:
        result = asyncio.get_running_loop().create_future()
        self.arrived()
        frame = StreamFrame(self._number, data, self._parameters, time.perf_counter(), result)
        self._number += 1
        if dropped := await self._waiting.put(frame):
            self._slow_down(DROPPED_PER_SECOND, dropped)
        for _ in range(dropped):
            self.stats.drop()
            self.dropped()

    async def _work(self) -> None:
        """Start the classification of frames, at most IN_FLIGHT at once."""
        while True:
            await self.slot()
            frame = await self._waiting.next()
            self.enqueue(frame)
            if frame is None:
                return
            self.start(self._classify, frame)

    async def _classify(self, frame: StreamFrame) -> None:
        """Classify one frame in a request of its own, and set its result, or the error that ends the stream."""
        data, frame.data = frame.data, b""

        async def upload() -> AsyncGenerator[Upload, None]:
            try:
                yield Upload(frame.number, "", data)
            finally:  # the frame is admitted or abandoned
                self._waiting.passed_on(len(data))

        spec = RequestSpec(
            model_name=self._model_name,
            model_version=self._model_version,
            selection=None,
            timeout_seconds=frame.parameters.timeout_seconds(self._settings),
            request_id=self._request_id,
            key=self._key,
            address=self._address,
            fields=self._fields,
            charges=Charges(self._caller),
        )
        outcome: Result | Exception
        results: list[Result] = []
        try:
            await self._service.run(upload(), spec, results.append, account=self._account)
            (outcome,) = results
        except Overloaded as error:
            outcome = Result(0, "", error=error)
        except Exception as error:  # raised again by deliver
            outcome = error
        frame.result.set_result(outcome)

    async def deliver(self, item: StreamFrame) -> None:
        """Send the result of a frame."""
        outcome = await item.result
        if isinstance(outcome, Exception):
            raise outcome
        dropped, self.stats.dropped_since_result = self.stats.dropped_since_result, 0
        await self._send_message(await self._result_message(item, outcome, dropped))

    async def _send_message(self, message: bytes) -> None:
        self._sending_since = asyncio.get_running_loop().time()
        try:
            await self._send(message)
        finally:
            self._sending_since = None

    async def _result_message(self, frame: StreamFrame, result: Result, dropped: int) -> bytes:
        predictions: list[dict[str, Any]] = []
        sequence: dict[str, Any] | None = None
        if result.error is None:
            assert result.scores is not None
            labels = await self._labels_of(result.model_version)
            selection = frame.parameters.selection(self._settings)
            predictions = predictions_of(result.scores, labels, selection, multi_label=result.multi_label)
            if frame.parameters.smoothing is not Smoothing.NONE:
                state, error = await self._add_frame(frame, result)
                margin = frame.parameters.margin if frame.parameters.smoothing is Smoothing.HOLD else 0.0
                smoothed = (
                    self._held.predictions(state.scores, labels, selection, margin, multi_label=result.multi_label)
                    if state
                    else []
                )
                sequence = sequence_member(state, smoothed, error)
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

    async def _labels_of(self, version: str | None) -> TextSequence[str]:
        """The labels of the version that classified the frame."""
        if version not in self._labels:
            self._labels = {version: await self._service.backend.labels(self._model_name, self._model_version)}
        return self._labels[version]

    async def _add_frame(self, frame: StreamFrame, result: Result) -> tuple[SequenceScores | None, GatewayError | None]:
        """Add a frame to the sequence; returns the new scores or the error."""
        assert result.scores is not None
        deadline = Deadline.after(frame.parameters.timeout_seconds(self._settings))
        try:
            if self._sequence is None:
                self._sequence = await self._service.backend.sequence(self._model_name, self._model_version)
            state = await self._sequence.add(result.scores, frame.parameters.for_the_model, deadline, self._request_id)
        except GatewayError as error:
            return None, error
        self.stats.restarted += state.restarted
        return state, None


def _check_end(text: str) -> None:
    """Raise InvalidParameter if a text message is not the one that ends a stream."""
    try:
        given = json_text.decode(text, max_bytes=MAX_END_BYTES)
    except JsonError:
        given = None
    if given != {"end": True}:
        raise InvalidParameter(
            'The only text message is {"end": true}. Frames are binary messages, and parameters are in the query.'
        )
