"""The methods of GRPCInferenceService: live, ready, metadata, what tools read, infer, and a stream of inferences.

The service is the one of KServe and Triton, with Triton's stream; the methods that change Triton are unimplemented:
https://github.com/kserve/open-inference-protocol/blob/main/specification/protocol/open_inference_grpc.proto.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from http import HTTPStatus
from typing import Any

from google.protobuf.json_format import ParseDict
from google.protobuf.message import DecodeError, Message
from tritonclient.grpc import service_pb2 as pb

from gateway.errors import InvalidBody, ModelNotFound, Overloaded
from gateway.settings import Settings
from gateway_plugins.oip.grpc_api.asgi import App, Headers, Request, Response, send_request
from gateway_plugins.oip.grpc_api.call import Call
from gateway_plugins.oip.grpc_api.connection import Handler
from gateway_plugins.oip.grpc_api.messages import (
    HEADER_LENGTH,
    InferCall,
    Parts,
    infer_call,
    infer_response,
    model_metadata,
    model_path,
)
from gateway_plugins.oip.grpc_api.status import Failure, Metadata, failed, failure_in, trailing_of
from gateway_plugins.oip.grpc_api.stream import InferStream
from gateway_plugins.oip.grpc_api.wire import MessageScan

SERVICE = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name
NOT_READY = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND, HTTPStatus.SERVICE_UNAVAILABLE})
"""The statuses of `/v2/models/{name}/ready` and `/v2/health/ready` that say no."""

KnowsKey = Callable[[Headers], bool]
Serve = Callable[[Call], Awaitable[tuple[Message, Metadata]]]


class InferenceApi:
    """Serves the calls by requests to `app`, whose lifespan state is `state`.

    `knows_key` says whether a request with these headers has a valid key, or needs none.
    """

    def __init__(self, app: App, state: Mapping[str, Any], knows_key: KnowsKey) -> None:
        self._app = app
        self._state = state
        self._knows_key = knows_key
        self._settings: Settings = state["settings"]
        self._is_stopping = False
        self._streams: set[InferStream] = set()

    def methods(self) -> Mapping[bytes, Handler]:
        """The handlers by path."""
        unary: dict[str, Serve] = {
            "ServerLive": self._server_live,
            "ServerReady": self._server_ready,
            "ServerMetadata": self._server_metadata,
            "ModelReady": self._model_ready,
            "ModelMetadata": self._model_metadata,
            "ModelConfig": self._model_config,
            "ModelStatistics": self._model_statistics,
            "RepositoryIndex": self._repository_index,
        }
        handlers: dict[str, Handler] = {name: partial(_answer, serve) for name, serve in unary.items()}
        handlers |= {"ModelInfer": self._model_infer, "ModelStreamInfer": self._model_stream_infer}
        return {f"/{SERVICE}/{name}".encode(): handler for name, handler in handlers.items()}

    def stop(self) -> None:
        """End the streams, after the responses to the requests in progress."""
        self._is_stopping = True
        for stream in self._streams:
            stream.stop(_stopping())

    async def _server_live(self, _: Call) -> tuple[Message, Metadata]:
        return pb.ServerLiveResponse(live=True), ()

    async def _server_ready(self, call: Call) -> tuple[Message, Metadata]:
        ready, trailing = await self._is_ready(call, "/v2/health/ready")
        return pb.ServerReadyResponse(ready=ready), trailing

    async def _server_metadata(self, call: Call) -> tuple[Message, Metadata]:
        response = await self._request(call, "/v2")
        return pb.ServerMetadataResponse(**json.loads(response.body)), trailing_of(response)

    async def _model_ready(self, call: Call) -> tuple[Message, Metadata]:
        message = await self._read(call, pb.ModelReadyRequest)
        try:
            path = model_path(message.name, message.version)
        except ModelNotFound:
            return pb.ModelReadyResponse(ready=False), ()
        ready, trailing = await self._is_ready(call, f"{path}/ready")
        return pb.ModelReadyResponse(ready=ready), trailing

    async def _model_metadata(self, call: Call) -> tuple[Message, Metadata]:
        message = await self._read(call, pb.ModelMetadataRequest)
        response = await self._request(call, model_path(message.name, message.version))
        return model_metadata(json.loads(response.body)), trailing_of(response)

    async def _model_config(self, call: Call) -> tuple[Message, Metadata]:
        message = await self._read(call, pb.ModelConfigRequest)
        response = await self._request(call, f"{model_path(message.name, message.version)}/config")
        return ParseDict({"config": json.loads(response.body)}, pb.ModelConfigResponse()), trailing_of(response)

    async def _model_statistics(self, call: Call) -> tuple[Message, Metadata]:
        message = await self._read(call, pb.ModelStatisticsRequest)
        path = model_path(message.name, message.version) if message.name else "/v2/models"
        response = await self._request(call, f"{path}/stats")
        return ParseDict(json.loads(response.body), pb.ModelStatisticsResponse()), trailing_of(response)

    async def _repository_index(self, call: Call) -> tuple[Message, Metadata]:
        message = await self._read(call, pb.RepositoryIndexRequest)
        body = json.dumps({"ready": message.ready}).encode()
        headers = [*call.headers, (b"content-type", b"application/json")]
        response = await self._send(call, Request("POST", "/v2/repository/index", headers, call.address, (body,)))
        models = json.loads(_expect_ok(response).body)
        return ParseDict({"models": models}, pb.RepositoryIndexResponse()), trailing_of(response)

    async def _model_infer(self, call: Call) -> Metadata:
        raw = await self._receive(call, call.connection.max_message_bytes)
        response = await self._infer(call, self._infer_call(raw))
        parts = infer_response(response.headers, response.pieces)
        del raw
        await call.send(parts)
        return trailing_of(response)

    async def _model_stream_infer(self, call: Call) -> Metadata:
        async def infer(inference: InferCall, before: "asyncio.Future[Parts] | None") -> Parts:
            try:
                if before is not None:
                    await asyncio.wait({before})
                response = await self._infer(call, inference)
                return infer_response(response.headers, response.pieces)
            except Failure:
                raise
            except Exception as error:
                raise failed(error) from error

        settings = self._settings
        stream = InferStream(
            call,
            infer,
            self._infer_call,
            in_flight=settings.stream_frames_in_flight,
            idle_seconds=settings.stream_idle_seconds,
        )
        if self._is_stopping:
            raise _stopping()
        await self._check_key(call)
        with self._state["streams"].lease(stream, 1):
            self._streams.add(stream)
            try:
                await stream.serve()
            finally:
                self._streams.discard(stream)
        return ()

    def _infer_call(self, raw: memoryview) -> InferCall:
        """The request of a message, which is counted before anything is made of it."""
        settings = self._settings
        scan = MessageScan(max_description_bytes=settings.max_header_bytes, max_images=settings.max_files)
        return infer_call(raw, scan)

    async def _infer(self, call: Call, inference: InferCall) -> Response:
        """The response to one inference; raises Failure."""
        length = (HEADER_LENGTH, str(len(inference.header)).encode())
        headers = [*call.headers, length, (b"content-type", b"application/octet-stream")]
        body = (inference.header, *inference.contents)
        return _expect_ok(await self._send(call, Request("POST", inference.path, headers, call.address, body)))

    async def _is_ready(self, call: Call, path: str) -> tuple[bool, Metadata]:
        response = await self._send(call, Request("GET", path, call.headers, call.address))
        if response.status != HTTPStatus.OK and response.status not in NOT_READY:
            raise failure_in(response)
        return response.status == HTTPStatus.OK, trailing_of(response)

    async def _request(self, call: Call, path: str) -> Response:
        """The response to a request without a body; raises Failure."""
        return _expect_ok(await self._send(call, Request("GET", path, call.headers, call.address)))

    async def _send(self, call: Call, request: Request) -> Response:
        return await send_request(self._app, {**self._state, "reader": call.outgoing}, request)

    async def _read(self, call: Call, kind: Any) -> Any:  # noqa: ANN401  # protobuf's classes
        """The message of a call."""
        try:
            return kind.FromString(bytes(await self._receive(call, self._settings.max_header_bytes)))
        except DecodeError as exc:
            raise InvalidBody(f"The message is not a {kind.DESCRIPTOR.name}.") from exc

    async def _receive(self, call: Call, max_bytes: int) -> memoryview:
        """Read the message of a call, whose key is checked before."""
        await self._check_key(call)
        raw = await call.receive(max_bytes)
        if raw is None:
            raise InvalidBody("The call has no message.")
        return raw

    async def _check_key(self, call: Call) -> None:
        """Raise Failure without a valid key; the application then refuses, counts and logs a request."""
        if not self._knows_key(call.headers):
            await self._request(call, "/v2")


async def _answer(serve: Serve, call: Call) -> Metadata:
    """A method with one small message each way."""
    message, trailing = await serve(call)
    await call.send([message.SerializeToString()])
    return trailing


def _expect_ok(response: Response) -> Response:
    if response.status != HTTPStatus.OK:
        raise failure_in(response)
    return response


def _stopping() -> Overloaded:
    return Overloaded("The server is stopping; call again.")
