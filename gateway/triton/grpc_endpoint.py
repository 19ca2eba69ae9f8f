"""One Triton at one address over gRPC: the only calls that the gateway makes to it."""

import asyncio
import secrets
from collections.abc import Awaitable
from typing import Any, TypeVar

import grpc
from google.protobuf.json_format import MessageToJson
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.model_config_pb2 import ModelConfig
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub
from tritonclient.utils import InferenceServerException

from gateway import tracing
from gateway.errors import DeadlineExceeded
from gateway.inference.backend import Call, InferResult
from gateway.inference.sequence import SequenceScores, SequenceStep
from gateway.time_slices import TimeSlice
from gateway.triton.endpoint import LOAD_TIMEOUT_SECONDS, METADATA_TIMEOUT_SECONDS
from gateway.triton.error_table import translate
from gateway.triton.infer_request import infer_request
from gateway.triton.infer_response import read_answer
from gateway.triton.stepping import read_step, step_request

T = TypeVar("T")

MAX_MESSAGE_BYTES = 2**31 - 1
CHANNEL_OPTIONS = [
    # Pictures and scores are larger than gRPC's 4 MiB.
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # A Triton that stopped answering is noticed within seconds, also between requests.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # The default backoff grows to two minutes, in which a Triton that is back would be left alone.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Channels of one process share connections by default: two clients of one server would share their faults.
    ("grpc.use_local_subchannel_pool", 1),
]
INFER = "inference.GRPCInferenceService/ModelInfer"

BEARS_CANCELLATION = (2, 53)
"""The first Triton (24.12) that survives clients which cancel; older ones crash (server issue 7368), 2.51 as well."""
FORCE_RELOAD_PARAMETER = "renewed_by_gateway"
"""Tells Triton's configuration of a model from the one before."""
ABANDONED_SECONDS = 30.0
"""How long past its deadline a call may stay with a Triton that must not see it cancelled."""


def version_numbers(version: str) -> tuple[int, ...]:
    """The first two numbers of a version such as 2.51.0, to be compared."""
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())


class GrpcEndpoint:
    """A Triton's gRPC interface; see gateway.triton.endpoint.

    Make it inside the event loop that uses it, one a process: a gRPC channel does not survive a fork.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.supports_cancellation = False
        """Whether a call may be cancelled; false until `fetch_server_metadata` knows better."""
        self._channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        self._stub = GRPCInferenceServiceStub(self._channel)
        # The stub's own would take a message where we have its bytes.
        self._infer = self._channel.unary_unary(f"/{INFER}", response_deserializer=pb.ModelInferResponse.FromString)
        host, _, port = address.rpartition(":")
        self._attributes: dict[str, tracing.Attribute] = {
            "rpc.system.name": "grpc",
            "rpc.method": INFER,
            "server.address": host.strip("[]"),
            "server.port": int(port),
        }
        """Of a span (OpenTelemetry's semantic conventions for RPC)."""
        self._abandoned: set[asyncio.Task[Any]] = set()

    async def infer(self, call: Call, *, class_count: int | None, vectors: bool = False) -> InferResult:
        """Ask for the `class_count` best classes of each image, or for every class's score if None; see Backend.infer.

        And for their `vectors`, which the model must have, whatever the call says of them.

        The call's selection is left to the caller; here its model is an ensemble of Triton's.

        The call carries the trace of the request that is being served, so that Triton's spans join it.
        """
        time_slice, timeout_seconds, cancellable = TimeSlice(), call.deadline.left_seconds, self.supports_cancellation
        request = infer_request(call, class_count, timeout_seconds, vectors=vectors)
        await time_slice.pause_if_over()  # gRPC makes another copy of what may be 20 MB
        attributes = {**self._attributes, "gateway.model.name": call.model_name, "gateway.images": len(call.batch)}
        with tracing.call(INFER, attributes) as headers:
            rpc = self._infer(
                request,
                timeout=timeout_seconds + (0 if cancellable else ABANDONED_SECONDS),
                metadata=None if headers is None else tuple(headers.items()),
            )
            # Where a call has an owner that lets it come to its end, nobody cancels it.
            response = await (
                self._send(rpc)
                if cancellable or call.run_to_completion
                else self._send_uncancelled(rpc, timeout_seconds)
            )
        return await read_answer(response, rows=len(call.batch), classified=class_count is not None, vectors=vectors)

    async def infer_sequence(self, step: SequenceStep) -> SequenceScores:
        """Take a sequence one step on; see Endpoint.infer_sequence."""
        timeout_seconds, cancellable = step.deadline.left_seconds, self.supports_cancellation
        rpc = self._stub.ModelInfer(
            step_request(step, timeout_seconds), timeout=timeout_seconds + (0 if cancellable else ABANDONED_SECONDS)
        )
        response = await (self._send(rpc) if cancellable else self._send_uncancelled(rpc, timeout_seconds))
        return read_step(response, step)

    async def fetch_server_metadata(self) -> str:
        """Triton's version, such as 2.51.0; from then on it is known what faults this Triton has."""
        metadata = await self._send(
            self._stub.ServerMetadata(pb.ServerMetadataRequest(), timeout=METADATA_TIMEOUT_SECONDS)
        )
        numbers = version_numbers(metadata.version)
        self.supports_cancellation = numbers >= BEARS_CANCELLATION
        return str(metadata.version)

    async def index(self) -> pb.RepositoryIndexResponse:
        """Every model of the repository with its versions, state and reason."""
        return await self._send(
            self._stub.RepositoryIndex(pb.RepositoryIndexRequest(), timeout=METADATA_TIMEOUT_SECONDS)
        )

    async def config(self, name: str, version: str = "") -> ModelConfig:
        """A model's configuration; raises ModelNotFound or ModelUnavailable."""
        request = pb.ModelConfigRequest(name=name, version=version)
        return (await self._send(self._stub.ModelConfig(request, timeout=METADATA_TIMEOUT_SECONDS))).config

    async def load(self, name: str) -> None:
        """Load a model, or reload it where its files have changed."""
        request = pb.RepositoryModelLoadRequest(model_name=name)
        await self._send(self._stub.RepositoryModelLoad(request, timeout=LOAD_TIMEOUT_SECONDS))

    async def force_reload(self, name: str) -> None:
        """Load a model anew though its files have not changed; its old instances answer until the new ones can."""
        config = await self.config(name)
        # Triton loads again what has changed, and one parameter more is a change; the same one twice is none.
        config.parameters[FORCE_RELOAD_PARAMETER].string_value = secrets.token_hex(8)
        request = pb.RepositoryModelLoadRequest(model_name=name)
        request.parameters["config"].string_param = MessageToJson(config, preserving_proto_field_name=True)
        await self._send(self._stub.RepositoryModelLoad(request, timeout=LOAD_TIMEOUT_SECONDS))

    async def unload(self, name: str) -> None:
        """Unload a model; what it is working on is finished first."""
        request = pb.RepositoryModelUnloadRequest(model_name=name)
        await self._send(self._stub.RepositoryModelUnload(request, timeout=LOAD_TIMEOUT_SECONDS))

    async def close(self) -> None:
        """Close the channel; calls in flight are given up."""
        for task in self._abandoned:
            task.cancel()
        await asyncio.gather(*self._abandoned, return_exceptions=True)
        await self._channel.close()

    async def _send(self, call: Awaitable[T]) -> T:
        try:
            return await call
        except grpc.RpcError as exc:
            error = InferenceServerException(exc.details(), status=str(exc.code()))
            raise translate(error) from error

    async def _send_uncancelled(
        self, call: Awaitable[pb.ModelInferResponse], timeout_seconds: float | None
    ) -> pb.ModelInferResponse:
        """Wait `timeout_seconds` at most; the call runs on when they have passed or the waiting is cancelled."""
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
            task.exception()  # seen: nobody may be left to see it
