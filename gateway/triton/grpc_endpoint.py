"""Inferences of one Triton over gRPC; with GrpcChannel, the only calls that the gateway makes to it."""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import grpc
from tritonclient.grpc import service_pb2 as pb

from gateway import tracing
from gateway.errors import DeadlineExceeded
from gateway.inference.backend import Call, InferResult
from gateway.inference.sequence import SequenceScores, SequenceStep
from gateway.time_slices import TimeSlice
from gateway.triton.codec import CONTRACT, Codec
from gateway.triton.error_table import translate
from gateway.triton.grpc_channel import GrpcChannel, triton_error
from gateway.triton.messages import read_step, step_request

if TYPE_CHECKING:
    from gateway.triton.tls import Tls

SERVICE = "inference.GRPCInferenceService"
INFER = f"{SERVICE}/ModelInfer"

COPIED_INLINE_BYTES = 2**20
"""Before a larger message is sent, other tasks may run."""
ABANDONED_SECONDS = 30.0
"""How long past its deadline a call may run at a Triton that does not support cancellation."""


class GrpcEndpoint(GrpcChannel):
    """A Triton's gRPC interface: inferences, and the calls of GrpcChannel; see gateway.triton.endpoint."""

    def __init__(self, address: str, tls: "Tls | None" = None) -> None:
        super().__init__(address, tls)
        # The stub's own method takes a message; this one takes serialised bytes.
        self._infer = self._channel.unary_unary(f"/{INFER}", response_deserializer=pb.ModelInferResponse.FromString)
        self._abandoned: set[asyncio.Task[Any]] = set()

    async def infer(
        self, call: Call, *, class_count: int | None, embeddings: bool = False, codec: Codec = CONTRACT
    ) -> InferResult:
        """See TritonEndpoint.infer.

        The call carries the trace context of the current request, so that Triton's spans join its trace.
        """
        timeout_seconds = call.deadline.left_seconds
        request = codec.request(call, class_count, timeout_seconds, embeddings=embeddings)
        if len(request) > COPIED_INLINE_BYTES:
            await TimeSlice().pause()  # gRPC makes another copy of what may be 20 MB
        rows, to_completion = len(call.batch.images), call.run_to_completion
        headers = tracing.headers_of() if tracing.current() else None
        response = await self._model_infer(request, timeout_seconds, headers, run_to_completion=to_completion)
        return await codec.read(response, rows=rows, class_count=class_count, embeddings=embeddings)

    async def infer_sequence(self, step: SequenceStep) -> SequenceScores:
        """Run one step of a sequence; see TritonEndpoint.infer_sequence."""
        timeout_seconds = step.deadline.left_seconds
        request = step_request(step, timeout_seconds).SerializeToString()
        return read_step(await self._model_infer(request, timeout_seconds), step)

    async def call(self, method: str, request: bytes, timeout_seconds: float) -> bytes:
        """See TritonEndpoint.call; the caller must not cancel it if the Triton does not support that."""
        call = self._channel.unary_unary(f"/{SERVICE}/{method}")
        abandoned_seconds = 0 if self.supports_cancellation else ABANDONED_SECONDS
        return await self._send(call(request, timeout=timeout_seconds + abandoned_seconds))

    async def close(self) -> None:
        """Close the channel; calls in flight are cancelled."""
        for task in self._abandoned:
            task.cancel()
        await asyncio.gather(*self._abandoned, return_exceptions=True)
        await super().close()

    async def _model_infer(
        self,
        request: bytes,
        timeout_seconds: float,
        headers: Mapping[str, str] | None = None,
        *,
        run_to_completion: bool = False,
    ) -> pb.ModelInferResponse:
        """Send a ModelInferRequest; raises DeadlineExceeded after `timeout_seconds`.

        A call to a Triton that does not support cancellation runs on without its caller after a timeout or a
        cancellation. With `run_to_completion` the caller never cancels it and waits for its end.
        """
        cancellable = self.supports_cancellation
        call = self._infer(
            request,
            timeout=timeout_seconds + (0 if cancellable else ABANDONED_SECONDS),
            metadata=tuple(headers.items()) if headers else None,
        )
        if cancellable or run_to_completion:
            try:
                return await call
            except grpc.RpcError as exc:
                error = triton_error(exc)
                raise translate(error) from error
        task = asyncio.ensure_future(self._send(call))
        self._abandoned.add(task)
        task.add_done_callback(self._forget)
        await asyncio.wait({task}, timeout=timeout_seconds)
        if not task.done():
            raise DeadlineExceeded
        return task.result()

    def _forget(self, task: "asyncio.Task[Any]") -> None:
        self._abandoned.discard(task)
        if not task.cancelled():
            task.exception()  # marks the exception as retrieved: the caller may be gone
