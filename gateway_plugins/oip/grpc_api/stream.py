"""One ModelStreamInfer: requests in, responses in their order, a few requests at a time."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from tritonclient.grpc import service_pb2 as pb

from gateway import metrics
from gateway.errors import GatewayError, InvalidBody, StreamIdle
from gateway.inference.scope import Scope
from gateway.limits.pools import IDLE_SECONDS
from gateway_plugins.oip.grpc_api.messages import InferCall, infer_call
from gateway_plugins.oip.grpc_api.status import Failure, failure_of

Infer = Callable[[InferCall, "asyncio.Future[bytes] | None"], Awaitable[pb.ModelInferResponse]]
"""Serves one request, after the response of the one before it in its sequence, if any; raises Failure."""
ERROR_CODE = "error_code"
"""Parameter of a failed request's response: the gateway's error code."""


@dataclass(slots=True)
class _InProgress:
    sequence: tuple[str, object] | None
    response: "asyncio.Future[bytes]"


class InferStream:
    """A client of the pool of streams (gateway.limits.pools.Client), which are limited together with WebSockets.

    Requests of one sequence are served one after the other, and others up to `in_flight` at once. A request that fails
    has an `error_message` and does not end the stream, as in Triton.
    """

    def __init__(self, infer: Infer, *, in_flight: int, idle_seconds: float) -> None:
        self._infer = infer
        self._slots = asyncio.Semaphore(in_flight)
        self._limit_seconds = idle_seconds
        self._in_progress: deque[_InProgress] = deque()
        self._responses: asyncio.Queue[_InProgress | None] = asyncio.Queue()
        self._active_at = asyncio.get_running_loop().time()
        self._stop_error: asyncio.Future[GatewayError] = asyncio.get_running_loop().create_future()

    @property
    def _idle_seconds(self) -> float:
        return 0.0 if self._in_progress else asyncio.get_running_loop().time() - self._active_at

    @property
    def is_idle(self) -> bool:
        """See gateway.limits.pools.Client."""
        return self._idle_seconds >= IDLE_SECONDS

    def uselessness(self, held: int) -> float:  # noqa: ARG002  # each stream holds one
        """See gateway.limits.pools.Client."""
        return self._idle_seconds

    def evict(self, error: GatewayError) -> None:
        """Make `run` read no more, and raise an error."""
        if not self._stop_error.done():
            self._stop_error.set_result(error)

    async def run(
        self, read: Callable[[], Awaitable[bytes | object]], write: Callable[[bytes], Awaitable[None]]
    ) -> None:
        """Serve until the client has sent its last request, and all responses are sent.

        `read` returns grpc.aio.EOF at the end. Raises StreamIdle, and the error of `evict`, after the responses to the
        requests in progress.
        """
        end: GatewayError | None = None
        async with Scope() as scope:
            writer = scope.start(self._write_responses(write))
            try:
                while True:
                    await self._slots.acquire()
                    raw = await self._next(read)
                    if not isinstance(raw, bytes):
                        break
                    self._begin(raw, scope)
                    del raw  # it may be megabytes, and the next one may take long
            except GatewayError as error:
                end = error
            self._responses.put_nowait(None)
            await writer
        if end is not None:
            raise end

    async def _next(self, read: Callable[[], Awaitable[bytes | object]]) -> bytes | object:
        """The next message. It is read by one task to its end: gRPC allows no second `read` after a cancelled one."""
        reading = asyncio.ensure_future(read())
        events: set[asyncio.Future[Any]] = {reading, self._stop_error}
        try:
            while True:
                left_seconds = max(self._limit_seconds - self._idle_seconds, 0.01)
                await asyncio.wait(events, timeout=left_seconds, return_when=asyncio.FIRST_COMPLETED)
                if reading.done():
                    return reading.result()
                if self._stop_error.done():
                    raise self._stop_error.result()
                if self._idle_seconds >= self._limit_seconds:
                    metrics.STREAMS_STOPPED.labels("idle").inc()
                    raise StreamIdle(
                        f"No request came for {self._limit_seconds:g} s.",
                        limit="stream_idle_seconds",
                        value=self._limit_seconds,
                    )
        finally:
            reading.cancel()

    def _begin(self, raw: bytes, scope: Scope) -> None:
        """Start to serve a request."""
        self._active_at = asyncio.get_running_loop().time()
        response: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        call: InferCall | GatewayError
        try:
            call = infer_call(raw)
        except InvalidBody as error:
            call = error
        sequence = call.sequence if isinstance(call, InferCall) else None
        before = None
        if sequence is not None:
            before = next((each.response for each in reversed(self._in_progress) if each.sequence == sequence), None)
        request = _InProgress(sequence, response)
        self._in_progress.append(request)
        self._responses.put_nowait(request)
        scope.start(self._serve(call, before, response))

    async def _serve(
        self, call: InferCall | GatewayError, before: "asyncio.Future[bytes] | None", response: "asyncio.Future[bytes]"
    ) -> None:
        message = pb.ModelStreamInferResponse()
        try:
            message.infer_response.CopyFrom(await self._infer_response(call, before))
        except Failure as failure:
            message.error_message = failure.message
            message.infer_response.id = "" if isinstance(call, GatewayError) else call.id
            message.infer_response.parameters[ERROR_CODE].string_param = failure.reason
        response.set_result(message.SerializeToString())

    async def _infer_response(
        self, call: InferCall | GatewayError, before: "asyncio.Future[bytes] | None"
    ) -> pb.ModelInferResponse:
        """The response to a request; raises Failure."""
        if isinstance(call, GatewayError):
            raise failure_of(call)
        return await self._infer(call, before)

    async def _write_responses(self, write: Callable[[bytes], Awaitable[None]]) -> None:
        """Send the responses in the order of the requests."""
        while (request := await self._responses.get()) is not None:
            await write(await request.response)
            self._in_progress.popleft()
            self._active_at = asyncio.get_running_loop().time()
            self._slots.release()
