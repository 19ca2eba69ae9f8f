"""One Triton over gRPC: its channel, with or without TLS, and the only calls that the gateway makes to it."""

import asyncio
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import grpc
from google.protobuf.json_format import MessageToJson
from google.protobuf.message import Message
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.model_config_pb2 import ModelConfig
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub
from tritonclient.utils import InferenceServerException

from gateway import tracing
from gateway.errors import (
    DeadlineExceeded,
    GatewayError,
    InferenceFailed,
    ModelNotFound,
    ModelUnavailable,
    Overloaded,
    TritonUnreachable,
)
from gateway.inference.backend import Call, SequenceScores, SequenceStep
from gateway.inference.result import Row
from gateway.timing import TimeSlice
from gateway.triton.wire import CONTRACT, Codec, read_step, step_request
from gateway.values.clients import is_loopback


class StubDied(ModelUnavailable):
    """The process of a Python model has died, and Triton starts no other; `step` is the name of that model."""

    def __init__(self, step: str) -> None:
        super().__init__()
        self.step = step


class SequenceLost(InferenceFailed):
    """Triton has no state of this sequence: it was idle too long, or its model was reloaded."""


class LoadNotAllowed(InferenceFailed):
    """Triton loads its models by itself (--model-control-mode=none or poll), and takes no request to load one."""


NOT_LOADED = "The model is not loaded, or not yet; GET /models says why."

BY_TEXT: tuple[tuple[str, type[GatewayError]], ...] = (
    # Queue-full arrives as UNAVAILABLE, like a dead server. Only the text differs, and only one of them may be retried.
    ("Exceeds maximum queue size", Overloaded),
    ("Request timeout expired", DeadlineExceeded),
    # A model between unload and load gives UNAVAILABLE or NOT_FOUND.
    ("is not ready", ModelUnavailable),
    ("has no available versions", ModelUnavailable),
    ("is not available", ModelUnavailable),
    ("must specify the START flag", SequenceLost),
    ("explicit model load / unload is not allowed", LoadNotAllowed),
    ("unknown model", ModelNotFound),
    ("is not found", ModelNotFound),
)
"""A part of Triton's message → the error; the first match wins, and takes precedence over the status."""

BY_STATUS: dict[grpc.StatusCode, type[GatewayError]] = {
    grpc.StatusCode.CANCELLED: TritonUnreachable,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.NOT_FOUND: ModelNotFound,
    grpc.StatusCode.UNAVAILABLE: TritonUnreachable,
}
"""gRPC status → the error, if no text matches; InferenceFailed for every other status."""

# "Stub process 'preprocessor_0_1' is not healthy.": the model, then two numbers for the instance.
_STUB = re.compile(r"Stub process '(?P<step>.+?)(_\d+_\d+)?' is not healthy")


def translate(exc: InferenceServerException) -> GatewayError:
    """The gateway's error for Triton's; raise it `from exc`, so that the log keeps Triton's message."""
    text = exc.message() or ""
    if stub := _STUB.search(text):
        return StubDied(stub["step"])
    for words, error in BY_TEXT:
        if words in text:
            return error(NOT_LOADED) if error is ModelUnavailable else error()
    return next((error for status, error in BY_STATUS.items() if str(status) == exc.status()), InferenceFailed)()


SHORT_SECONDS = 1.0
"""A load that took less time started no processes."""
SHARE = 0.25
LONGEST_SECONDS = 5.0


def pause_seconds(load_seconds: float) -> float:
    """How long to load nothing after a load that took `load_seconds`: a quarter of it, at most LONGEST_SECONDS."""
    return 0.0 if load_seconds < SHORT_SECONDS else min(LONGEST_SECONDS, SHARE * load_seconds)


METADATA_TIMEOUT_SECONDS = 5.0
"""Timeout of calls that run no model, such as metadata, index and configuration."""
LOAD_TIMEOUT_SECONDS = 120.0
ALL_CLASSES = 2**31 - 1
"""A class count above any model's: Triton returns all classes."""


T = TypeVar("T")

MAX_MESSAGE_BYTES = 2**31 - 1
CHANNEL_OPTIONS = [
    # Images and scores exceed gRPC's default of 4 MiB.
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # A Triton that stops answering is detected within 15 s, also between requests.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # The default backoff grows to two minutes, which would delay the return of a restarted Triton. `gateway up` starts
    # Triton and the API concurrently.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 250),
    # Channels of one process share connections by default, so that one faulty connection would affect them all.
    ("grpc.use_local_subchannel_pool", 1),
]
CANCELLATION_SINCE = (2, 53)
"""The first Triton (24.12) that survives cancelled calls; older ones, such as 2.51, crash (server issue 7368)."""
FORCE_RELOAD_PARAMETER = "renewed_by_gateway"
"""A parameter that makes a model's configuration differ from the previous one."""


def channel_options(address: str) -> list[tuple[str, int]]:
    """CHANNEL_OPTIONS; for this machine's own addresses without the environment's proxy, which cannot reach them."""
    return [*CHANNEL_OPTIONS, *([("grpc.enable_http_proxy", 0)] if is_loopback(address) else [])]


def version_numbers(version: str) -> tuple[int, ...]:
    """The first two numbers of a version such as 2.51.0, to be compared."""
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())


INFER = "inference.GRPCInferenceService/ModelInfer"

COPIED_INLINE_BYTES = 2**20
"""Before a larger message is sent, other tasks may run."""
ABANDONED_SECONDS = 30.0
"""How long past its deadline a call may run at a Triton that does not support cancellation."""


class TritonEndpoint:
    """One Triton at one address, over gRPC; every method raises errors of gateway.errors only.

    Create it inside the event loop that uses it, after any fork: a gRPC channel does not survive a fork. With
    `credentials` it uses TLS; `server_name` is the name in Triton's certificate if that is not the address.
    """

    def __init__(self, address: str, credentials: grpc.ChannelCredentials | None = None, server_name: str = "") -> None:
        self.address = address
        self.supports_cancellation = False
        """Whether a call may be cancelled; false until `fetch_server_metadata` has read the version."""
        options: list[tuple[str, int | str]] = [*channel_options(address)]
        if credentials is None:
            self._channel = grpc.aio.insecure_channel(address, options=options)
        else:
            if server_name:
                options.append(("grpc.ssl_target_name_override", server_name))
            self._channel = grpc.aio.secure_channel(address, credentials, options=options)
        self._stub = GRPCInferenceServiceStub(self._channel)
        # The stub's own method takes a message; this one takes serialised bytes.
        self._infer = self._channel.unary_unary(f"/{INFER}", response_deserializer=pb.ModelInferResponse.FromString)
        self._abandoned: set[asyncio.Task[Any]] = set()

    async def infer(
        self, call: Call, *, class_count: int | None, embeddings: bool = False, codec: Codec = CONTRACT
    ) -> Sequence[Row]:
        """Request the `class_count` best classes of each image, or all scores if None; see Backend.infer.

        With `embeddings` also those, which the model must have; `call.embeddings` is ignored. The caller applies the
        call's selection; `call.model_name` is the name of a model in Triton, and `codec` is its codec. The call carries
        the trace context of the current request, so that Triton's spans join its trace.
        """
        timeout_seconds = call.deadline.left_seconds
        request = codec.request(call, class_count, timeout_seconds, embeddings=embeddings)
        if len(request) > COPIED_INLINE_BYTES:
            await TimeSlice().pause()  # gRPC makes another copy, of up to 20 MB
        rows, to_completion = len(call.images), call.run_to_completion
        headers = tracing.headers_of() if tracing.current() else None
        response = await self._model_infer(request, timeout_seconds, headers, run_to_completion=to_completion)
        return await codec.read(response, rows=rows, class_count=class_count, embeddings=embeddings)

    async def infer_sequence(self, step: SequenceStep) -> SequenceScores:
        """Run one step of a sequence; raises SequenceLost if Triton has no state of it."""
        timeout_seconds = step.deadline.left_seconds
        request = step_request(step, timeout_seconds).SerializeToString()
        return read_step(await self._model_infer(request, timeout_seconds), step)

    async def fetch_server_metadata(self) -> str:
        """Triton's version, such as 2.51.0; it also sets `supports_cancellation`."""
        metadata = await self._ask(self._stub.ServerMetadata, pb.ServerMetadataRequest())
        numbers = version_numbers(metadata.version)
        self.supports_cancellation = numbers >= CANCELLATION_SINCE
        return str(metadata.version)

    async def index(self) -> pb.RepositoryIndexResponse:
        """Every model of the repository with its versions, state and reason."""
        return await self._ask(self._stub.RepositoryIndex, pb.RepositoryIndexRequest())

    async def config(self, name: str, version: str = "") -> ModelConfig:
        """A model's configuration; raises ModelNotFound or ModelUnavailable."""
        return (await self._ask(self._stub.ModelConfig, pb.ModelConfigRequest(name=name, version=version))).config

    async def step_configs(self, config: ModelConfig) -> list[ModelConfig]:
        """The configurations of an ensemble's steps in order; for any other model, its own."""
        return [await self.config(step.model_name) for step in config.ensemble_scheduling.step] or [config]

    async def statistics(self, name: str, version: str = "") -> pb.ModelStatisticsResponse:
        """The statistics of a model's versions since they were loaded; raises ModelUnavailable if it is not loaded."""
        return await self._ask(self._stub.ModelStatistics, pb.ModelStatisticsRequest(name=name, version=version))

    async def load(self, name: str) -> None:
        """Load a model, or reload it if its files have changed."""
        request = pb.RepositoryModelLoadRequest(model_name=name)
        await self._ask(self._stub.RepositoryModelLoad, request, LOAD_TIMEOUT_SECONDS)

    async def force_reload(self, name: str) -> None:
        """Reload a model whose files have not changed; its old instances answer until the new ones are loaded."""
        config = await self.config(name)
        # Triton reloads a model whose configuration has changed; a new value of this parameter is such a change.
        config.parameters[FORCE_RELOAD_PARAMETER].string_value = secrets.token_hex(8)
        request = pb.RepositoryModelLoadRequest(model_name=name)
        request.parameters["config"].string_param = MessageToJson(config, preserving_proto_field_name=True)
        await self._ask(self._stub.RepositoryModelLoad, request, LOAD_TIMEOUT_SECONDS)

    async def unload(self, name: str) -> None:
        """Unload a model; its requests in progress are finished first."""
        request = pb.RepositoryModelUnloadRequest(model_name=name)
        await self._ask(self._stub.RepositoryModelUnload, request, LOAD_TIMEOUT_SECONDS)

    async def close(self) -> None:
        """Close the channel; calls in flight are cancelled."""
        for task in self._abandoned:
            task.cancel()
        await asyncio.gather(*self._abandoned, return_exceptions=True)
        await self._channel.close()

    async def _ask(
        self,
        method: Callable[..., Awaitable[T]],
        request: Message,
        timeout_seconds: float = METADATA_TIMEOUT_SECONDS,
    ) -> T:
        """A call of the stub that runs no model."""
        return await self._send(method(request, timeout=timeout_seconds))

    async def _send(self, call: Awaitable[T]) -> T:
        try:
            return await call
        except grpc.RpcError as exc:
            error = InferenceServerException(exc.details(), status=str(exc.code()))
            raise translate(error) from error

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
            return await self._send(call)
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
