"""The methods of GRPCInferenceService: live, ready, metadata, infer, and a stream of inferences.

The service is the one of KServe and Triton, with Triton's stream; its other methods are unimplemented:
https://github.com/kserve/open-inference-protocol/blob/main/specification/protocol/open_inference_grpc.proto. Every
method is registered as a stream of messages, which is the same on the wire: so its message is read here, by the rules
of gateway.limits.arrivals.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

import grpc
import structlog
from google.protobuf.message import DecodeError, Message
from tritonclient.grpc import service_pb2 as pb

from gateway import metrics
from gateway.errors import GatewayError, InternalError, InvalidBody, Overloaded
from gateway.limits.arrivals import Arrivals
from gateway.limits.pools import PoolLease
from gateway.settings import Settings
from gateway_plugins.oip.grpc_api.asgi import App, Headers, Request, Response, send_request
from gateway_plugins.oip.grpc_api.messages import (
    HEADER_LENGTH,
    InferCall,
    infer_call,
    infer_response,
    model_metadata,
    model_path,
)
from gateway_plugins.oip.grpc_api.status import Failure, Metadata, failure_in, failure_of, trailing_of
from gateway_plugins.oip.grpc_api.stream import InferStream

log = structlog.get_logger("gateway")

SERVICE = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name
ROUTE = "grpc"
"""The route, in the metric of requests, of calls that are refused before they become a request."""
NOT_HEADERS = frozenset(
    {
        *("accept", "connection", "content-encoding", "content-length", "content-type", "host"),
        *("transfer-encoding", HEADER_LENGTH.decode()),
    }
)
"""Metadata that is not passed on: it describes the HTTP/2 request, or would contradict the one that is made of it."""
NOT_READY = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND, HTTPStatus.SERVICE_UNAVAILABLE})
"""The statuses of `/v2/models/{name}/ready` and `/v2/health/ready` that say no."""

KnowsKey = Callable[[Headers], bool]
Context = Any
"""grpc.aio.ServicerContext, which has no types."""
Serve = Callable[["Caller", Context], Awaitable[tuple[Message, Metadata]]]


@dataclass(frozen=True, slots=True)
class Caller:
    """The client of a call: its metadata as headers, and its address."""

    headers: Headers
    address: tuple[str, int] | None

    @classmethod
    def of(cls, context: Context) -> "Caller":
        """The client of a call."""
        headers = [
            (name.encode(), value.encode("latin-1", "replace"))
            for name, value in context.invocation_metadata()
            if isinstance(value, str) and name not in NOT_HEADERS and not name.startswith(("grpc-", ":"))
        ]
        return cls(headers, _address(context.peer()))


class _Arrived:
    """A message that has arrived: it is never evicted from the upload buffer, and may evict slow uploads."""

    is_idle = False

    def uselessness(self, held: int) -> float:  # noqa: ARG002  # see gateway.limits.pools.Client
        """See gateway.limits.pools.Client."""
        return 0.0

    def evict(self, error: Overloaded) -> None:
        """Never called."""
        raise AssertionError from error


class InferenceApi:
    """Serves the calls by requests to `app`, whose lifespan state is `state`.

    `knows_key` says whether a request with these headers has a valid key, or needs none.
    """

    def __init__(self, app: App, state: Mapping[str, Any], knows_key: KnowsKey, arrivals: Arrivals) -> None:
        self._app = app
        self._state = state
        self._knows_key = knows_key
        self._settings: Settings = state["settings"]
        self._arrivals = arrivals
        self._calls = 0
        self._none_left = asyncio.Event()
        self._none_left.set()
        self._stopping = False
        self._streams: set[InferStream] = set()

    def handler(self) -> grpc.GenericRpcHandler:
        """The handler of the service, for a grpc.aio server."""
        unary: dict[str, Serve] = {
            "ServerLive": self._server_live,
            "ServerReady": self._server_ready,
            "ServerMetadata": self._server_metadata,
            "ModelReady": self._model_ready,
            "ModelMetadata": self._model_metadata,
            "ModelInfer": self._model_infer,
        }
        methods = {name: grpc.stream_stream_rpc_method_handler(self._unary(serve)) for name, serve in unary.items()}
        methods["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(self._model_stream_infer)
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def drain(self, grace_seconds: float) -> None:
        """Refuse new calls, end the streams, and wait until the other calls have ended, at most `grace_seconds`."""
        self._stopping = True
        for stream in self._streams:
            stream.evict(_stopping())
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_seconds):
                await self._none_left.wait()

    def _unary(self, serve: Serve) -> Callable[[object, Context], Awaitable[None]]:
        """A method with one message each way."""

        async def handle(_: object, context: Context) -> None:
            with self._counted():
                try:
                    self._check_running()
                    message, trailing = await serve(Caller.of(context), context)
                except grpc.aio.BaseError:
                    raise  # the call has ended
                except Exception as error:  # each error becomes a status
                    failure = self._failure(error)
                    await context.abort(failure.code, failure.message, failure.trailing)
                    return
                context.set_trailing_metadata(trailing)
                await context.write(message.SerializeToString())

        return handle

    async def _server_live(self, _: Caller, __: Context) -> tuple[Message, Metadata]:
        return pb.ServerLiveResponse(live=True), ()

    async def _server_ready(self, caller: Caller, _: Context) -> tuple[Message, Metadata]:
        ready, trailing = await self._is_ready(caller, "/v2/health/ready")
        return pb.ServerReadyResponse(ready=ready), trailing

    async def _server_metadata(self, caller: Caller, _: Context) -> tuple[Message, Metadata]:
        response = await self._request(caller, "GET", "/v2")
        return pb.ServerMetadataResponse(**json.loads(response.body)), trailing_of(response)

    async def _model_ready(self, caller: Caller, context: Context) -> tuple[Message, Metadata]:
        message = await self._read(caller, context, pb.ModelReadyRequest)
        ready, trailing = await self._is_ready(caller, f"{model_path(message.name, message.version)}/ready")
        return pb.ModelReadyResponse(ready=ready), trailing

    async def _model_metadata(self, caller: Caller, context: Context) -> tuple[Message, Metadata]:
        message = await self._read(caller, context, pb.ModelMetadataRequest)
        response = await self._request(caller, "GET", model_path(message.name, message.version))
        return model_metadata(json.loads(response.body)), trailing_of(response)

    async def _model_infer(self, caller: Caller, context: Context) -> tuple[Message, Metadata]:
        call = infer_call(await self._receive(caller, context))
        with self._held(call):
            return await self._infer(caller, call)

    async def _model_stream_infer(self, _: object, context: Context) -> None:
        caller = Caller.of(context)

        async def infer(call: InferCall, before: "asyncio.Future[bytes] | None") -> pb.ModelInferResponse:
            try:
                with self._held(call):
                    if before is not None:
                        await asyncio.wait({before})
                    return (await self._infer(caller, call))[0]
            except Failure:
                raise
            except Exception as error:
                raise self._failure(error) from error

        settings = self._settings
        stream = InferStream(
            infer, in_flight=settings.stream_frames_in_flight, idle_seconds=settings.stream_idle_seconds
        )
        with self._counted():
            try:
                self._check_running()
                await self._check_key(caller)
                with self._state["streams"].lease(stream, 1):
                    self._streams.add(stream)
                    await stream.run(context.read, context.write)
            except grpc.aio.BaseError:
                raise  # the call has ended
            except Exception as error:  # each error becomes a status
                failure = self._failure(error)
                await context.abort(failure.code, failure.message, failure.trailing)
            finally:
                self._streams.discard(stream)

    async def _infer(self, caller: Caller, call: InferCall) -> tuple[pb.ModelInferResponse, Metadata]:
        """The response of one inference; raises Failure."""
        length = (HEADER_LENGTH, str(len(call.header)).encode())
        headers = [*caller.headers, length, (b"content-type", b"application/octet-stream")]
        body = (call.header, *call.contents)
        response = await send_request(self._app, self._state, Request("POST", call.path, headers, caller.address, body))
        if response.status != HTTPStatus.OK:
            raise failure_in(response)
        return infer_response(response.headers, response.body), trailing_of(response)

    async def _is_ready(self, caller: Caller, path: str) -> tuple[bool, Metadata]:
        response = await send_request(self._app, self._state, Request("GET", path, caller.headers, caller.address))
        if response.status != HTTPStatus.OK and response.status not in NOT_READY:
            raise failure_in(response)
        return response.status == HTTPStatus.OK, trailing_of(response)

    async def _request(self, caller: Caller, method: str, path: str) -> Response:
        """The response to a request without a body; raises Failure."""
        response = await send_request(self._app, self._state, Request(method, path, caller.headers, caller.address))
        if response.status != HTTPStatus.OK:
            raise failure_in(response)
        return response

    async def _read(self, caller: Caller, context: Context, kind: Any) -> Any:  # noqa: ANN401  # protobuf's classes
        """The message of a call."""
        try:
            return kind.FromString(await self._receive(caller, context))
        except DecodeError as exc:
            raise InvalidBody(f"The message is not a {kind.DESCRIPTOR.name}.") from exc

    async def _receive(self, caller: Caller, context: Context) -> bytes:
        """Read the message of a call, whose key is checked before."""
        await self._check_key(caller)
        raw = await self._arrivals.receive(context.read)
        if not isinstance(raw, bytes):  # the end of the call: cancelled, or with a message that gRPC has refused
            raise InvalidBody("The call has no message.")
        return raw

    async def _check_key(self, caller: Caller) -> None:
        """Raise Failure without a valid key; the application then refuses, counts and logs a request."""
        if not self._knows_key(caller.headers):
            await self._request(caller, "GET", "/v2")

    def _check_running(self) -> None:
        if self._stopping:
            raise _stopping()

    def _failure(self, error: Exception) -> Failure:
        """The failure for an error; one that is not the application's own is counted and logged here."""
        if isinstance(error, Failure):
            return error
        if not isinstance(error, GatewayError):
            log.error("unexpected_error", exc_info=error)
            error = InternalError()
        metrics.series(metrics.REQUESTS, ROUTE, str(int(error.status)), error.code).inc()
        log.warning("grpc_call_failed", status=int(error.status), code=error.code)
        return failure_of(error)

    def _held(self, call: InferCall) -> PoolLease:
        """Hold the bytes of a message that has arrived as those of an upload; raises Overloaded."""
        lease: PoolLease = self._state["uploads"].lease(_Arrived(), call.nbytes)
        return lease

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Count a call while it is served."""
        self._calls += 1
        self._none_left.clear()
        try:
            yield
        finally:
            self._calls -= 1
            if not self._calls:
                self._none_left.set()


def _stopping() -> Overloaded:
    return Overloaded("The server is stopping; call again.")


def _address(peer: str) -> tuple[str, int] | None:
    """The address in gRPC's name of a peer, such as ipv4:127.0.0.1:50000 or ipv6:%5B::1%5D:50000."""
    kind, _, rest = peer.partition(":")
    host, _, port = unquote(rest).rpartition(":")
    return (host.strip("[]"), int(port)) if kind in {"ipv4", "ipv6"} and port.isdigit() else None
