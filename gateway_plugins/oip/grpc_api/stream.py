"""One ModelStreamInfer: requests in, responses in their order, a few requests at a time."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tritonclient.grpc import service_pb2 as pb

from gateway.errors import GatewayError, Overloaded
from gateway_plugins.oip.grpc_api.call import Call
from gateway_plugins.oip.grpc_api.messages import InferCall
from gateway_plugins.oip.grpc_api.status import Failure, failure_of
from gateway_plugins.shared.ordered_stream import OrderedStream

Infer = Callable[[InferCall], Awaitable[pb.ModelInferResponse]]
"""Serves one request; raises Failure."""
ERROR_CODE = "error_code"
"""Parameter of a failed request's response: the gateway's error code."""


@dataclass(slots=True)
class _InProgress:
    sequence: tuple[str, object] | None
    response: "asyncio.Future[bytes]"
    held: int = 0
    """Bytes of the response that are counted."""


class InferStream(OrderedStream[_InProgress]):
    """A client of the pool of streams, which are limited together with WebSockets.

    Requests of one sequence are served one after the other, and others up to IN_FLIGHT at once. A request that fails
    has an `error_message` and does not end the stream, as in Triton.
    """

    def __init__(self, call: Call, infer: Infer, read: Callable[[bytes], InferCall]) -> None:
        super().__init__(noun="request")
        self._call = call
        self._infer = infer
        self._read = read
        self._in_progress: deque[_InProgress] = deque()
        self._end: Exception | None = None

    @property
    def unread_seconds(self) -> float:
        """For how long the client has not read a response."""
        return self._call.unread_seconds

    def evict(self, error: GatewayError) -> None:
        """Make `serve` raise an error; responses that the client does not read are dropped."""
        if self._call.is_idle:
            self._call.evict(error)
        self.stop(error)

    async def serve(self) -> None:
        """Serve until the client has sent its last request, and all responses are sent.

        Raises StreamIdle, the error of `evict`, and what `Call.receive_next` raises, after the responses to the
        requests in progress; what `Call.send` raises at once.
        """
        await self.run(self._read_requests)
        if self._end is not None:
            raise self._end

    async def _read_requests(self) -> None:
        try:
            while True:
                await self.slot()
                raw = await self.receive(self._call.receive_next)
                if raw is None:
                    break
                self._begin(raw)
                del raw  # it may be megabytes, and the next one may take long
        except (GatewayError, Failure) as error:
            self._end = error
        self.enqueue(None)

    def _begin(self, raw: bytes) -> None:
        """Start to serve a request."""
        self.arrived()
        request: InferCall | GatewayError
        try:
            request = self._read(raw)
        except GatewayError as error:
            request = error
        sequence = request.sequence if isinstance(request, InferCall) else None
        same = (each.response for each in reversed(self._in_progress) if sequence and each.sequence == sequence)
        item = _InProgress(sequence, asyncio.get_running_loop().create_future())
        self.start(self._serve, request, len(raw), next(same, None), item)
        self._in_progress.append(item)
        self.enqueue(item)

    async def deliver(self, item: _InProgress) -> None:
        """Send the response to a request."""
        response = await item.response
        self._call.hold(-item.held)
        await self._call.send(response)
        self._in_progress.popleft()

    async def _serve(
        self,
        request: InferCall | GatewayError,
        nbytes: int,
        before: "asyncio.Future[bytes] | None",
        item: _InProgress,
    ) -> None:
        try:
            if isinstance(request, GatewayError):
                raise failure_of(request)
            if before is not None:
                await asyncio.wait({before})
            response = pb.ModelStreamInferResponse(infer_response=await self._infer(request)).SerializeToString()
            self._hold(item, len(response))
        except Failure as failure:
            message = pb.ModelStreamInferResponse(error_message=failure.message)
            message.infer_response.id = "" if isinstance(request, GatewayError) else request.id
            message.infer_response.parameters[ERROR_CODE].string_param = failure.reason
            response = message.SerializeToString()
        finally:
            self._call.release(nbytes)
        item.response.set_result(response)

    def _hold(self, item: _InProgress, nbytes: int) -> None:
        """Count a response until it is sent; raises Failure."""
        try:
            self._call.hold(nbytes)
        except Overloaded as error:
            raise failure_of(error) from error
        item.held = nbytes
