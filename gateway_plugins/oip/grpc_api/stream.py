"""One ModelStreamInfer: requests in, responses in their order, a few requests at a time."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from tritonclient.grpc import service_pb2 as pb

from gateway import metrics
from gateway.errors import GatewayError, Overloaded, StreamIdle
from gateway.inference.scope import Scope
from gateway.limits.pools import IDLE_SECONDS
from gateway_plugins.oip.grpc_api.call import Call
from gateway_plugins.oip.grpc_api.messages import InferCall, Parts, stream_response
from gateway_plugins.oip.grpc_api.status import Failure, failure_of

Infer = Callable[[InferCall, "asyncio.Future[Parts] | None"], Awaitable[Parts]]
"""Serves one request, after the response of the one before it in its sequence, if any; raises Failure."""
ERROR_CODE = "error_code"
"""Parameter of a failed request's response: the gateway's error code."""


@dataclass(slots=True)
class _InProgress:
    sequence: tuple[str, object] | None
    response: "asyncio.Future[Parts]"


class InferStream:
    """A client of the pool of streams (gateway.limits.pools.Client), which are limited together with WebSockets.

    Requests of one sequence are served one after the other, and others up to `in_flight` at once. A request that fails
    has an `error_message` and does not end the stream, as in Triton.
    """

    def __init__(
        self, call: Call, infer: Infer, read: Callable[[memoryview], InferCall], *, in_flight: int, idle_seconds: float
    ) -> None:
        self._call = call
        self._infer = infer
        self._read = read
        self._slots = asyncio.Semaphore(in_flight)
        self._limit_seconds = idle_seconds
        self._in_progress: deque[_InProgress] = deque()
        self._responses: asyncio.Queue[_InProgress | None] = asyncio.Queue()
        self._active_at = asyncio.get_running_loop().time()
        self._stop_error: GatewayError | None = None
        self._reading: asyncio.Timeout | None = None

    @property
    def _idle_seconds(self) -> float:
        return 0.0 if self._in_progress else asyncio.get_running_loop().time() - self._active_at

    @property
    def _waited_seconds(self) -> float:
        """For how long the client has sent no request, or has not read a response."""
        return max(self._idle_seconds, self._call.outgoing.unread_seconds)

    @property
    def is_idle(self) -> bool:
        """See gateway.limits.pools.Client."""
        return self._waited_seconds >= IDLE_SECONDS

    def uselessness(self, held: int) -> float:  # noqa: ARG002  # each stream holds one
        """See gateway.limits.pools.Client."""
        return self._waited_seconds

    def evict(self, error: GatewayError) -> None:
        """Make `run` read no more, and raise an error; responses that the client does not read are dropped."""
        if self._call.outgoing.is_idle:
            self._call.evict(error)
        if self._stop_error is None:
            self._stop_error = error
            if self._reading is not None:
                with suppress(RuntimeError):  # it has ended meanwhile
                    self._reading.reschedule(0.0)

    async def run(self) -> None:
        """Serve until the client has sent its last request, and all responses are sent.

        Raises StreamIdle, the error of `evict`, and what `Call.receive` raises, after the responses to the requests in
        progress; what `Call.send` raises at once.
        """
        end: Exception | None = None
        async with Scope() as scope:
            writer = scope.start(self._write_responses())
            try:
                while not writer.done():
                    await self._slot(writer)
                    if writer.done() or (raw := await self._next()) is None:
                        break
                    self._begin(raw, scope)
                    del raw  # it may be megabytes, and the next one may take long
            except (GatewayError, Failure) as error:
                end = error
            self._responses.put_nowait(None)
            await writer
        if end is not None:
            raise end

    async def _slot(self, writer: "asyncio.Task[None]") -> None:
        """Wait for a slot, or for the writer's end: then the client does not read."""
        slot = asyncio.ensure_future(self._slots.acquire())
        try:
            await asyncio.wait({slot, writer}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            slot.cancel()

    async def _next(self) -> memoryview | None:
        """The next message, within the idle time."""
        while True:
            if self._stop_error is not None:
                raise self._stop_error
            if self._idle_seconds >= self._limit_seconds:
                metrics.STREAMS_STOPPED.labels("idle").inc()
                raise StreamIdle(
                    f"No request came for {self._limit_seconds:g} s.",
                    limit="stream_idle_seconds",
                    value=self._limit_seconds,
                )
            left_seconds = max(self._limit_seconds - self._idle_seconds, 0.01)
            try:
                async with asyncio.timeout(left_seconds) as self._reading:
                    return await self._call.receive(self._call.connection.max_message_bytes, awaits_next=True)
            except TimeoutError:
                continue
            finally:
                self._reading = None

    def _begin(self, raw: memoryview, scope: Scope) -> None:
        """Start to serve a request."""
        self._active_at = asyncio.get_running_loop().time()
        response: asyncio.Future[Parts] = asyncio.get_running_loop().create_future()
        call: InferCall | GatewayError
        try:
            call = self._read(raw)
        except GatewayError as error:
            call = error
        sequence = call.sequence if isinstance(call, InferCall) else None
        before = None
        if sequence is not None:
            before = next((each.response for each in reversed(self._in_progress) if each.sequence == sequence), None)
        request = _InProgress(sequence, response)
        self._in_progress.append(request)
        self._responses.put_nowait(request)
        scope.start(self._serve(call, len(raw), before, response))

    async def _serve(
        self,
        call: InferCall | GatewayError,
        nbytes: int,
        before: "asyncio.Future[Parts] | None",
        response: "asyncio.Future[Parts]",
    ) -> None:
        try:
            if isinstance(call, GatewayError):
                raise failure_of(call)
            parts = stream_response(await self._infer(call, before))
            self._hold(parts)
        except Failure as failure:
            message = pb.ModelStreamInferResponse(error_message=failure.message)
            message.infer_response.id = "" if isinstance(call, GatewayError) else call.id
            message.infer_response.parameters[ERROR_CODE].string_param = failure.reason
            parts = [message.SerializeToString()]
        finally:
            self._call.incoming.release(nbytes)
        response.set_result(parts)

    def _hold(self, parts: Parts) -> None:
        """Count a response until it is sent; raises Failure."""
        try:
            self._call.outgoing.hold(sum(map(len, parts)))
        except Overloaded as error:
            raise failure_of(error) from error

    async def _write_responses(self) -> None:
        """Send the responses in the order of the requests."""
        while (request := await self._responses.get()) is not None:
            await self._call.send(await request.response)
            self._in_progress.popleft()
            self._active_at = asyncio.get_running_loop().time()
            self._slots.release()
