"""One ModelStreamInfer: requests in, responses in their order, a few requests at a time."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tritonclient.grpc import service_pb2 as pb

from gateway.errors import GatewayError, Overloaded
from gateway_plugins.oip.grpc_api.call import Call
from gateway_plugins.oip.grpc_api.messages import InferCall, Parts, stream_response
from gateway_plugins.oip.grpc_api.status import Failure, failure_of
from gateway_plugins.shared.ordered_stream import OrderedStream

Infer = Callable[[InferCall, "asyncio.Future[Parts] | None"], Awaitable[Parts]]
"""Serves one request, after the response of the one before it in its sequence, if any; raises Failure."""
ERROR_CODE = "error_code"
"""Parameter of a failed request's response: the gateway's error code."""


@dataclass(slots=True)
class _InProgress:
    sequence: tuple[str, object] | None
    response: "asyncio.Future[Parts]"


class InferStream(OrderedStream[_InProgress]):
    """A client of the pool of streams, which are limited together with WebSockets.

    Requests of one sequence are served one after the other, and others up to `in_flight` at once. A request that fails
    has an `error_message` and does not end the stream, as in Triton.
    """

    def __init__(
        self, call: Call, infer: Infer, read: Callable[[memoryview], InferCall], *, in_flight: int, idle_seconds: float
    ) -> None:
        super().__init__(in_flight=in_flight, idle_limit_seconds=idle_seconds, noun="request")
        self._call = call
        self._infer = infer
        self._read = read
        self._in_progress: deque[_InProgress] = deque()
        self._end: Exception | None = None

    @property
    def unread_seconds(self) -> float:
        """For how long the client has not read a response."""
        return self._call.outgoing.idle_seconds

    def evict(self, error: GatewayError) -> None:
        """Make `serve` raise an error; responses that the client does not read are dropped."""
        if self._call.outgoing.is_idle:
            self._call.evict(error)
        self.stop(error)

    async def serve(self) -> None:
        """Serve until the client has sent its last request, and all responses are sent.

        Raises StreamIdle, the error of `evict`, and what `Call.receive` raises, after the responses to the requests in
        progress; what `Call.send` raises at once.
        """
        await self.run(self._read_requests)
        if self._end is not None:
            raise self._end

    async def _read_requests(self) -> None:
        try:
            while True:
                await self.slot()
                raw = await self.receive(self._next_message)
                if raw is None:
                    break
                self._begin(raw)
                del raw  # it may be megabytes, and the next one may take long
        except (GatewayError, Failure) as error:
            self._end = error
        self.enqueue(None)

    async def _next_message(self) -> memoryview | None:
        return await self._call.receive(self._call.connection.max_message_bytes, awaits_next=True)

    def _begin(self, raw: memoryview) -> None:
        """Start to serve a request."""
        self.arrived()
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
        self.enqueue(request)
        self.start(self._serve, call, len(raw), before, response)

    async def deliver(self, item: _InProgress) -> None:
        """Send the response to a request."""
        await self._call.send(await item.response)
        self._in_progress.popleft()

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
