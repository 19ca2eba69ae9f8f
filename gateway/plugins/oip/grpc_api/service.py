"""The methods of GRPCInferenceService: live, ready, metadata, configuration, statistics, infer, and streamed infer.

The service is the one of KServe and Triton, with Triton's stream; the methods that change Triton are unimplemented:
https://github.com/kserve/open-inference-protocol/blob/main/specification/protocol/open_inference_grpc.proto.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any

import grpc
from google.protobuf.json_format import ParseDict
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection as grpc_reflection
from grpc_reflection.v1alpha import reflection_pb2
from tritonclient.grpc import service_pb2 as pb

from gateway.errors import (
    GatewayError,
    InvalidBody,
    ModelNotFound,
    Overloaded,
    RequestTooLarge,
    StreamIdle,
    UploadTimeout,
)
from gateway.hooks import Runtime
from gateway.metrics import STREAMS_STOPPED
from gateway.plugins.oip.documents import HEADER_LENGTH
from gateway.plugins.oip.grpc_api.asgi import Response, send_request
from gateway.plugins.oip.grpc_api.call import ARRIVED, Call
from gateway.plugins.oip.grpc_api.messages import InferCall, infer_call, infer_response, model_path
from gateway.plugins.oip.grpc_api.status import Failure, Metadata, failed, failure_in, failure_of, trailing_of
from gateway.server.http import MAX_HEADER_BYTES
from gateway.settings import STREAM_IDLE_SECONDS
from gateway.values.quantities import size

SERVICE = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name
HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
"""https://grpc.io/docs/guides/health-checking/."""
CHECK, WATCH = f"/{HEALTH}/Check", f"/{HEALTH}/Watch"
REFLECTIONS = (grpc_reflection.SERVICE_NAME, "grpc.reflection.v1.ServerReflection")
"""Both versions have the same messages."""
SMALL_SECONDS = 2.0
"""How long a client may take to send a request for the health, which needs no API key, or for reflection."""
WATCH_SECONDS = 1.0
"""Interval in which a watched status is checked."""
NOT_READY = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND, HTTPStatus.SERVICE_UNAVAILABLE})
"""The statuses of `/v2/models/{name}/ready` and `/v2/health/ready` that say no."""

STOPPING = "The server is stopping; call again."
ERROR_CODE = "error_code"
"""Parameter of a failed request's response in a stream: the gateway's error code."""

Handler = Callable[[Call], Awaitable[Metadata]]
"""Serves a call; returns its trailing metadata, and raises the errors that become its status."""


@dataclass(frozen=True, slots=True)
class Read:
    """A method that reads something: its messages, its path below `/v2`, and the response as the JSON there."""

    request: Any
    response: Any
    path: Callable[[Any], str]
    wrap: Callable[[Any], dict[str, Any]] = dict


def _model(end: str) -> Callable[[Any], str]:
    return lambda message: model_path(message.name, message.version) + end


READS = {
    "ServerMetadata": Read(None, pb.ServerMetadataResponse, lambda _: "/v2"),
    "ModelMetadata": Read(pb.ModelMetadataRequest, pb.ModelMetadataResponse, _model("")),
    "ModelConfig": Read(
        pb.ModelConfigRequest, pb.ModelConfigResponse, _model("/config"), lambda document: {"config": document}
    ),
    "ModelStatistics": Read(pb.ModelStatisticsRequest, pb.ModelStatisticsResponse, _model("/stats")),
}
STATES = {
    "ServerReady": Read(None, pb.ServerReadyResponse, lambda _: "/v2/health/ready"),
    "ModelReady": Read(pb.ModelReadyRequest, pb.ModelReadyResponse, _model("/ready")),
}


class InferenceApi:
    """Serves the calls by requests to the application."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._settings = runtime.settings
        self._stopping: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def methods(self) -> Mapping[str, Handler]:
        """The handlers by path."""
        handlers: dict[str, Handler] = {
            "ServerLive": self._server_live,
            "RepositoryIndex": self._repository_index,
            "ModelInfer": self._model_infer,
            "ModelStreamInfer": self._model_stream_infer,
        }
        handlers |= {name: partial(self._read, read) for name, read in READS.items()}
        handlers |= {name: partial(self._ready, read) for name, read in STATES.items()}
        return {
            **{f"/{SERVICE}/{name}": handler for name, handler in handlers.items()},
            **{f"/{name}/ServerReflectionInfo": self._reflect for name in REFLECTIONS},
            CHECK: self._health_check,
            WATCH: self._health_watch,
        }

    def stop(self) -> None:
        """End the streams and watches, after the responses to the requests in progress."""
        self._stopping.set_result(None)

    async def _check_key(self, call: Call) -> None:
        """Raise Failure without a valid key; the application then refuses, counts and logs a request."""
        if not self._runtime.knows_key(call.headers):
            _expect_ok(await self._send(call, "GET", "/v2"))

    async def _health_check(self, call: Call) -> Metadata:
        request = await receive(call, health_pb2.HealthCheckRequest, SMALL_SECONDS)
        status = self._health(request.service)
        if status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN:
            message = f"Health is known for {SERVICE} and for an empty name."
            raise Failure(grpc.StatusCode.NOT_FOUND, message, "", ())
        await call.send(health_pb2.HealthCheckResponse(status=status).SerializeToString())
        return ()

    async def _health_watch(self, call: Call) -> Metadata:
        request, sent = await receive(call, health_pb2.HealthCheckRequest, SMALL_SECONDS), None
        while not self._stopping.done():
            if (status := self._health(request.service)) != sent:
                await call.send(health_pb2.HealthCheckResponse(status=status).SerializeToString())
                sent = status
            await asyncio.wait({self._stopping}, timeout=WATCH_SECONDS)
        raise Overloaded(STOPPING)

    def _health(self, service: str) -> int:
        """The gateway's readiness, for the server ("") and for the inference service."""
        if service not in {"", SERVICE}:
            return int(health_pb2.HealthCheckResponse.SERVICE_UNKNOWN)
        response = health_pb2.HealthCheckResponse
        return int(response.SERVING if self._runtime.is_ready() else response.NOT_SERVING)

    async def _reflect(self, call: Call) -> Metadata:
        await self._check_key(call)

        async def requests() -> AsyncIterator[Any]:
            while (raw := await call.receive_next(SMALL_SECONDS)) is not None:
                call.release(len(raw))
                yield parsed(reflection_pb2.ServerReflectionRequest, raw)

        servicer = grpc_reflection.aio.ReflectionServicer((SERVICE, HEALTH, *REFLECTIONS))
        async for response in servicer.ServerReflectionInfo(requests(), None):
            await call.send(response.SerializeToString())
        return ()

    async def _server_live(self, call: Call) -> Metadata:
        await call.send(pb.ServerLiveResponse(live=True).SerializeToString())
        return ()

    async def _read(self, read: Read, call: Call) -> Metadata:
        response = _expect_ok(await self._send(call, "GET", read.path(await self._request(read, call))))
        await call.send(ParseDict(read.wrap(json.loads(response.body)), read.response()).SerializeToString())
        return trailing_of(response)

    async def _ready(self, read: Read, call: Call) -> Metadata:
        ready = False
        trailing: Metadata = ()
        try:
            response = await self._send(call, "GET", read.path(await self._request(read, call)))
        except ModelNotFound:
            pass
        else:
            ready, trailing = response.status == HTTPStatus.OK, trailing_of(response)
            if not ready and response.status not in NOT_READY:
                raise failure_in(response)
        await call.send(read.response(ready=ready).SerializeToString())
        return trailing

    async def _repository_index(self, call: Call) -> Metadata:
        await self._check_key(call)
        message = await receive(call, pb.RepositoryIndexRequest)
        body = json.dumps({"ready": message.ready}).encode()
        response = _expect_ok(
            await self._send(call, "POST", "/v2/repository/index", (body,), (b"content-type", b"application/json"))
        )
        document = {"models": json.loads(response.body)}
        await call.send(ParseDict(document, pb.RepositoryIndexResponse()).SerializeToString())
        return trailing_of(response)

    async def _model_infer(self, call: Call) -> Metadata:
        await self._check_key(call)
        inference = infer_call(await call.receive(), max_images=self._settings.max_files)
        response = await self._infer(call, inference)
        await call.send(infer_response(response).SerializeToString())
        return trailing_of(response)

    async def _model_stream_infer(self, call: Call) -> Metadata:
        """Requests in, one response to each. One that fails does not end the stream, as in Triton."""
        await self._check_key(call)
        with self._runtime.streams.lease(ARRIVED, 1):
            while (raw := await self._next(call)) is not None:
                await call.send((await self._streamed(call, raw)).SerializeToString())
        return ()

    async def _next(self, call: Call) -> bytes | None:
        """The next request of a stream, None at its end; raises StreamIdle, and Overloaded if the server stops."""
        if not self._stopping.done():
            try:
                return await call.receive_next(STREAM_IDLE_SECONDS, self._stopping)
            except UploadTimeout:
                pass
        if self._stopping.done():
            raise Overloaded(STOPPING)
        STREAMS_STOPPED.labels("idle").inc()
        limit = "stream_idle_seconds"
        raise StreamIdle(f"No request came for {STREAM_IDLE_SECONDS:g} s.", limit=limit, value=STREAM_IDLE_SECONDS)

    async def _streamed(self, call: Call, raw: bytes) -> pb.ModelStreamInferResponse:
        """The response to a request of a stream, whose error is in it."""
        response = pb.ModelStreamInferResponse()
        try:
            inference = infer_call(raw, max_images=self._settings.max_files)
            response.infer_response.id = inference.id
            response.infer_response.CopyFrom(infer_response(await self._infer(call, inference)))
        except Exception as error:
            failure = failure_of(error) if isinstance(error, GatewayError) else failed(error)
            response.error_message = failure.message
            response.infer_response.parameters[ERROR_CODE].string_param = failure.reason
        finally:
            call.release(len(raw))
        return response

    async def _infer(self, call: Call, inference: InferCall) -> Response:
        """The response to one inference; raises Failure."""
        headers = (
            (HEADER_LENGTH.lower().encode(), str(len(inference.header)).encode()),
            (b"content-type", b"application/octet-stream"),
        )
        body = (inference.header, *inference.contents)
        return _expect_ok(await self._send(call, "POST", inference.path, body, *headers))

    async def _request(self, read: Read, call: Call) -> Any:  # noqa: ANN401  # protobuf's classes
        """The message of a call that has one, whose key is checked before."""
        if read.request is None:
            return None
        await self._check_key(call)
        return await receive(call, read.request)

    async def _send(
        self,
        call: Call,
        method: str,
        path: str,
        body: tuple[bytes | memoryview, ...] = (),
        *headers: tuple[bytes, bytes],
    ) -> Response:
        state = {"runtime": self._runtime, "reader": ARRIVED}
        return await send_request(self._runtime.app, state, method, path, (*call.headers, *headers), call.address, body)


async def receive(call: Call, kind: Any, seconds: float | None = None) -> Any:  # noqa: ANN401  # protobuf's classes
    """The small message of a call; raises RequestTooLarge, InvalidBody, and what Call.receive raises."""
    raw = await call.receive(seconds)
    call.release(len(raw))
    return parsed(kind, raw)


def parsed(kind: Any, raw: bytes) -> Any:  # noqa: ANN401  # protobuf's classes
    """A small message; raises RequestTooLarge and InvalidBody."""
    if len(raw) > MAX_HEADER_BYTES:
        message = f"The message may have {size(MAX_HEADER_BYTES)}."
        raise RequestTooLarge(message, limit="max_header_bytes", value=MAX_HEADER_BYTES)
    try:
        return kind.FromString(raw)
    except DecodeError as exc:
        raise InvalidBody(f"The message is not a {kind.DESCRIPTOR.name}.") from exc


def _expect_ok(response: Response) -> Response:
    if response.status != HTTPStatus.OK:
        raise failure_in(response)
    return response
