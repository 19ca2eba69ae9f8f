"""The gRPC server of one process: the inference service, the standard health service, and reflection."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import grpc
import structlog
from google.protobuf.message import DecodeError
from grpc_reflection.v1alpha import reflection, reflection_pb2

from gateway.errors import GatewayError
from gateway.limits.arrivals import Arrivals
from gateway.settings import Settings
from gateway_plugins.oip.grpc_api import health
from gateway_plugins.oip.grpc_api.asgi import App
from gateway_plugins.oip.grpc_api.service import SERVICE, InferenceApi, KnowsKey
from gateway_plugins.oip.grpc_api.status import failure_of
from gateway_plugins.oip.settings import GrpcSettings

log = structlog.get_logger("gateway")

WATCHERS_SHARE = 4
"""Of so many calls one may watch the health, which needs no key."""
STOP_SECONDS = 1.0
"""How long calls that watch the health may take to end."""
IDLE_CONNECTION_SECONDS = 300
"""A connection without a call is closed after this time."""
CONNECTION_SECONDS, LAST_CALLS_SECONDS = 3_600, 600
"""A connection is closed after an hour, as soon as its calls have ended, at the latest after ten minutes more.

So every call ends, also one whose client never reads its response, and clients find gateways that are new."""
PING_SECONDS, PING_TIMEOUT_SECONDS = 60, 20
"""A connection that is silent is tested after this time, and closed if the client does not answer."""
MIN_CLIENT_PING_SECONDS = 10
"""The shortest keepalive of clients, also without calls; more frequent pings close the connection."""


def options(settings: Settings) -> list[tuple[str, int]]:
    """The channel arguments: https://grpc.github.io/grpc/core/group__grpc__arg__keys.html."""
    grpc_settings = GrpcSettings.of(settings)
    return [
        # With one process, a port that is taken must be an error.
        ("grpc.so_reuseport", int(settings.workers > 1)),
        ("grpc.max_receive_message_length", grpc_settings.grpc_max_message_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", settings.max_header_bytes),
        ("grpc.absolute_max_metadata_size", settings.max_header_bytes),
        ("grpc.max_concurrent_streams", grpc_settings.grpc_max_calls),
        ("grpc.max_connection_idle_ms", IDLE_CONNECTION_SECONDS * 1_000),
        ("grpc.max_connection_age_ms", CONNECTION_SECONDS * 1_000),
        ("grpc.max_connection_age_grace_ms", LAST_CALLS_SECONDS * 1_000),
        ("grpc.keepalive_time_ms", PING_SECONDS * 1_000),
        ("grpc.keepalive_timeout_ms", PING_TIMEOUT_SECONDS * 1_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", MIN_CLIENT_PING_SECONDS * 1_000),
        # No compression (bit 0 is the identity), as over HTTP: a small message could become one of any size.
        ("grpc.compression_enabled_algorithms_bitset", 1),
    ]


@asynccontextmanager
async def serving(
    app: App, state: Mapping[str, Any], *, knows_key: KnowsKey, is_ready: Callable[[], bool]
) -> AsyncIterator[None]:
    """Serve on `settings.grpc_port` until the end of the block, and then until the calls in progress have ended."""
    settings: Settings = state["settings"]
    limits = GrpcSettings.of(settings)
    arrivals = Arrivals(
        max(1, settings.max_bytes_waiting // limits.grpc_max_message_bytes),
        max_wait_seconds=settings.max_wait_seconds,
        timeout_seconds=settings.upload_timeout_seconds,
    )
    api = InferenceApi(app, state, knows_key, arrivals)
    healthy = health.Health(is_ready, arrivals, max_watchers=max(1, limits.grpc_max_calls // WATCHERS_SHARE))
    server = grpc.aio.server(options=options(settings), maximum_concurrent_rpcs=limits.grpc_max_calls)
    server.add_generic_rpc_handlers((api.handler(), healthy.handler(), _reflection(arrivals)))
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    server.add_insecure_port(f"{host}:{limits.grpc_port}")
    await server.start()
    log.info("grpc_started", host=settings.host, port=limits.grpc_port)
    try:
        yield
    finally:
        healthy.stop()
        # HTTP requests had the same time already.
        most = settings.shutdown_delay_seconds + settings.shutdown_grace_seconds
        await api.drain(state["draining"].left_seconds(most))
        await server.stop(STOP_SECONDS)


def _reflection(arrivals: Arrivals) -> grpc.GenericRpcHandler:
    """The handler of reflection; its messages are read by the rules of all others."""
    servicer = reflection.aio.ReflectionServicer((SERVICE, health.NAME, reflection.SERVICE_NAME))

    async def reflect(_: object, context: Any) -> None:  # noqa: ANN401  # grpc.aio.ServicerContext, which has no types
        async def requests() -> AsyncIterator[Any]:
            while isinstance(raw := await arrivals.receive(context.read), bytes):
                yield reflection_pb2.ServerReflectionRequest.FromString(raw)

        try:
            async for response in servicer.ServerReflectionInfo(requests(), context):
                await context.write(response.SerializeToString())
        except GatewayError as error:
            failure = failure_of(error)
            await context.abort(failure.code, failure.message, failure.trailing)
        except DecodeError:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "The message is not a ServerReflectionRequest.")

    handler = grpc.stream_stream_rpc_method_handler(reflect)
    return grpc.method_handlers_generic_handler(reflection.SERVICE_NAME, {"ServerReflectionInfo": handler})
