"""The gRPC server of one process, on grpc.aio: calls within limits, and a stop that waits for them.

Each method is served as a stream of messages; on the wire, a call with one message each way is the same. So reads and
writes happen here with time limits, and messages are bytes, which are counted before they are parsed.
docs/guides/grpc.md lists grpc's limits, and the missing ones.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc
import structlog

from gateway.errors import UserError
from gateway.hooks import Runtime
from gateway.limits.bounds import Bound
from gateway.plugins.oip.grpc_api.call import Call, ClientGone
from gateway.plugins.oip.grpc_api.service import CHECK, SERVICE, WATCH, Handler, InferenceApi
from gateway.plugins.oip.grpc_api.status import Failure, failed, failure_of
from gateway.plugins.oip.settings import MAX_CALLS, ProtocolSettings
from gateway.server.http import MAX_HEADER_BYTES
from gateway.settings import variable
from gateway.values.clients import is_loopback

log = structlog.get_logger("gateway")

MAX_PROBES = 16
"""Calls of the methods that probes use, beyond MAX_CALLS. They need no key, and a message may have megabytes."""
PROBES = frozenset({CHECK, f"/{SERVICE}/ServerLive"})
MAX_WATCHES = 16
"""Calls that may watch the health, beyond MAX_CALLS. They need no key, and have no end."""
MAX_UNFINISHED_CALLS = 2_048
"""Calls that grpc keeps, including calls whose client does not read: their status cannot be sent, and grpc.aio cannot
reset them, so they end with their connection."""
MAX_CONNECTIONS = 512
LAST_CALLS_SECONDS = 600.0
MAX_OVERHEAD_BYTES = 64 * 1024
"""Bytes of a message in addition to its largest image."""
OPTIONS = {
    "grpc.max_allowed_incoming_connections": MAX_CONNECTIONS,
    "grpc.max_concurrent_streams": MAX_CALLS,
    "grpc.server_handshake_timeout_ms": 10_000,
    "grpc.max_connection_idle_ms": 300_000,
    # Clients find gateways that are new. Calls have ten minutes to end.
    "grpc.max_connection_age_ms": 3_600_000,
    "grpc.max_connection_age_grace_ms": int(1e3 * LAST_CALLS_SECONDS),
    # A client that is silent is tested, and may test the server every ten seconds.
    "grpc.keepalive_time_ms": 60_000,
    "grpc.keepalive_timeout_ms": 20_000,
    "grpc.http2.min_ping_interval_without_data_ms": 10_000,
    # A call that is not read holds 64 KiB: its window does not grow.
    "grpc.http2.bdp_probe": 0,
    # Workers share the port. A gateway that is not one of them finds it taken (gateway.server.serve.check_address).
    "grpc.so_reuseport": 1,
    # Compressed messages could be bombs.
    "grpc.compression_enabled_algorithms_bitset": 1,
}
POLL_SECONDS = 0.1

NOT_READ = Failure(grpc.StatusCode.DEADLINE_EXCEEDED, "The response was not read in time.", "", ())
"""The end of an incomplete call: its status must not be success."""


class KeysRequired(UserError):
    """The port would be open to other machines without API keys."""


class GrpcServer(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
    """Serves methods by their paths, at most MAX_CALLS calls at a time."""

    def __init__(self, runtime: Runtime, methods: Mapping[str, Handler]) -> None:
        self._settings = runtime.settings
        self._runtime = runtime
        self._methods = methods
        self._open = Bound("grpc_max_calls", MAX_CALLS)
        self._slots = dict.fromkeys(PROBES, Bound("grpc_max_calls", MAX_PROBES))
        """The limits of calls that are not in `_open`."""
        self._slots[WATCH] = Bound("grpc_max_calls", MAX_WATCHES)
        self._ending: set[asyncio.Task[None]] = set()
        self._servers: list[Any] = []
        """The listening server comes last. A call has ended the others' listening; they still have calls."""

    async def start(self, port: int) -> None:
        """Listen on a port."""
        settings = self._settings
        options = {
            **OPTIONS,
            "grpc.max_receive_message_length": settings.max_file_bytes + MAX_OVERHEAD_BYTES,
            "grpc.max_metadata_size": MAX_HEADER_BYTES,
            "grpc.absolute_max_metadata_size": MAX_HEADER_BYTES,
        }
        server = grpc.aio.server(
            handlers=[self], options=list(options.items()), maximum_concurrent_rpcs=MAX_UNFINISHED_CALLS
        )
        host = settings.host
        server.add_insecure_port(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        await server.start()
        self._servers.append(server)

    async def keep(self, port: int) -> None:
        """Start again whenever a call has ended the server.

        A path that is not UTF-8 does that: grpc.aio stops to listen, and calls in progress continue.
        """
        while True:
            try:
                await self._servers[-1].wait_for_termination(POLL_SECONDS)
            except Exception as error:  # grpc.aio raises what ended the server
                ended = self._servers[-1]
                try:
                    await self.start(port)
                except RuntimeError as failure:  # tried again
                    log.error("grpc_cannot_listen", port=port, reason=str(failure))  # noqa: TRY400  # it says all
                else:
                    log.warning("grpc_restarted", reason=str(error))
                    task = asyncio.ensure_future(self._end(ended))
                    self._ending.add(task)
                    task.add_done_callback(self._ending.discard)

    async def stop(self, grace_seconds: float) -> None:
        """Refuse new calls, and wait for up to `grace_seconds` until the open ones have ended."""
        await asyncio.gather(*(server.stop(grace_seconds) for server in self._servers))

    async def _end(self, server: Any) -> None:  # noqa: ANN401  # grpc has no types
        """Release a server that no longer listens, once its calls have ended."""
        await server.stop(LAST_CALLS_SECONDS)
        self._servers.remove(server)

    def service(self, handler_call_details: Any) -> grpc.RpcMethodHandler | None:  # noqa: ANN401  # grpc has no types
        """The handler of a method, None if it is unknown; see grpc.GenericRpcHandler."""
        path = handler_call_details.method
        if path not in self._methods:
            return None

        async def serve(_: object, context: Any) -> None:  # noqa: ANN401
            await self._serve(path, context)

        return grpc.stream_stream_rpc_method_handler(serve)

    async def _serve(self, path: str, context: Any) -> None:  # noqa: ANN401
        call = Call(context, self._settings, self._runtime.uploads, self._runtime.responses)
        slots = self._slots.get(path, self._open)
        slots.add(1)
        try:
            _check(slots)
            call.check()
            call.bind(self._runtime.upload_bound(call.headers))
            context.set_trailing_metadata(await self._methods[path](call))
        except ClientGone:
            failure = NOT_READ
        except Exception as error:  # each error becomes a status
            failure = failed(error)
        else:
            return
        finally:
            slots.add(-1)
            call.close()
        # The client has left, or has not even read headers: grpc sends those again with the status, which is an error.
        with suppress(grpc.aio.InternalError):
            await context.abort(failure.code, failure.message, failure.trailing)


@asynccontextmanager
async def serving(runtime: Runtime) -> AsyncIterator[None]:
    """Serve on `settings.grpc_port` until the end of the block, and then until the calls in progress have ended.

    Raises KeysRequired.
    """
    settings = runtime.settings
    port = ProtocolSettings.of(settings).grpc_port
    if runtime.knows_key(()) and not is_loopback(f"{settings.host}:{port}"):
        raise KeysRequired(
            f"{variable('grpc_port')} on {settings.host} needs API keys: set {variable('api_keys_file')} to a file of "
            f"`gateway key add`, or {variable('host')}=127.0.0.1 behind a proxy that checks clients"
        )
    api = InferenceApi(runtime)
    server = GrpcServer(runtime, api.methods())
    await server.start(port)
    log.info("grpc_started", host=settings.host, port=port)
    keeping = asyncio.ensure_future(server.keep(port))
    try:
        yield
    finally:
        keeping.cancel()
        api.stop()
        # HTTP requests had the same time already.
        most = settings.shutdown_delay_seconds + settings.shutdown_grace_seconds
        await server.stop(runtime.draining.left_seconds(most))


def _check(slots: Bound) -> None:
    if slots.free < 0:
        full = slots.full("Too many calls are open: the limit grpc_max_calls is {}; retry later.")
        raise failure_of(full, grpc.StatusCode.RESOURCE_EXHAUSTED)
