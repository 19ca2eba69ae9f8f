"""The gRPC server of one process: the inference service, the standard health service, and reflection."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc
import structlog

from gateway import metrics
from gateway.errors import Overloaded
from gateway.limits.connections import Connections
from gateway.limits.lease import Bound
from gateway.limits.pools import Pool
from gateway.server.serve import ACCEPTED
from gateway.settings import Settings
from gateway_plugins.oip.grpc_api import health, reflection
from gateway_plugins.oip.grpc_api.asgi import App
from gateway_plugins.oip.grpc_api.call import Call
from gateway_plugins.oip.grpc_api.call_starts import CallStarts
from gateway_plugins.oip.grpc_api.connection import GrpcConnection, Handler
from gateway_plugins.oip.grpc_api.service import SERVICE, InferenceApi, KnowsKey
from gateway_plugins.oip.grpc_api.status import Failure, failure_of
from gateway_plugins.oip.settings import ProtocolSettings

log = structlog.get_logger("gateway")

WATCHERS_SHARE = 4
"""At most 1/`WATCHERS_SHARE` of the calls may be health watches; they need no API key."""
PROBES = 64
"""Calls of the methods that probes use, beyond the limit of calls."""
STOP_SECONDS = 1.0
"""How long connections may take to close after the last call has ended."""
BACKLOG = 2048
PROBE_PATHS = frozenset({f"/{health.NAME}/Check".encode(), f"/{SERVICE}/ServerLive".encode()})

UploadBound = Callable[[Sequence[tuple[bytes, bytes]]], Bound | None]


class GrpcServer:
    """What the connections of one process share: settings, limits, and the methods."""

    def __init__(self, state: Mapping[str, Any], methods: Mapping[bytes, Handler], upload_bound: UploadBound) -> None:
        self.settings: Settings = state["settings"]
        self.limits = ProtocolSettings.of(self.settings)
        self.uploads: Pool = state["uploads"]
        self.responses: Pool = state["responses"]
        self.connections: Connections = state["connections"]
        self.starts = CallStarts()
        self.upload_bound = upload_bound
        self.open_connections: set[GrpcConnection] = set()
        self._none_open = asyncio.Event()
        self._none_open.set()
        self.is_stopping = False
        self._methods = methods
        refusal = "Too many calls are open: the limit grpc_max_calls is {}; retry later."
        eviction = "Another call needs the place of this one, whose client sends or reads nothing: the limit "
        eviction += "grpc_max_calls is {}."
        self._calls = Pool(
            Bound("grpc_max_calls", self.limits.grpc_max_calls),
            metrics.CONNECTIONS_CLOSED.labels("slow"),
            refusal=refusal,
            eviction=eviction,
        )
        self._probes = Pool(Bound("grpc_max_calls", PROBES), metrics.CONNECTIONS_CLOSED.labels("slow"), refusal=refusal)
        self._tasks: set[asyncio.Task[None]] = set()

    def connect(self, connection: GrpcConnection) -> None:
        """A connection has opened."""
        self.open_connections.add(connection)
        self._none_open.clear()

    def disconnect(self, connection: GrpcConnection) -> None:
        """A connection has closed."""
        self.open_connections.discard(connection)
        if not self.open_connections:
            self._none_open.set()

    def is_probe(self, path: bytes) -> bool:
        """Whether probes of liveness and readiness call this method; it is served on reserved connections."""
        return path in PROBE_PATHS

    def open(self, call: Call) -> Handler:
        """Take a slot for a call; raises Failure or Overloaded."""
        handle = self._methods.get(call.path)
        if handle is None:
            message = f"The gateway has no method {call.path.decode(errors='replace')}; reflection lists its methods."
            raise Failure(grpc.StatusCode.UNIMPLEMENTED, message, "", ())
        if self.is_stopping:
            raise Overloaded("The server is stopping; call again.")
        pool = self._probes if self.is_probe(call.path) else self._calls
        try:
            call.slot = pool.lease(call, 1)
        except Overloaded as error:
            raise failure_of(error, grpc.StatusCode.RESOURCE_EXHAUSTED) from error
        return handle

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a call in a task, for whose end the server waits when it stops."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def stop(self, grace_seconds: float) -> None:
        """Refuse new calls, wait until the open ones have ended, at most `grace_seconds`, and close all connections."""
        self.is_stopping = True
        for connection in tuple(self.open_connections):
            connection.stop()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace_seconds)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=STOP_SECONDS)
        for connection in tuple(self.open_connections):
            connection.leave()
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                await self._none_open.wait()
        for connection in tuple(self.open_connections):
            connection.transport.abort()


@asynccontextmanager
async def serving(
    app: App,
    state: Mapping[str, Any],
    *,
    knows_key: KnowsKey,
    is_ready: Callable[[], bool],
    upload_bound: UploadBound = lambda _: None,
) -> AsyncIterator[None]:
    """Serve on `settings.grpc_port` until the end of the block, and then until the calls in progress have ended.

    `upload_bound` returns the share of the upload buffer of a request's API key, by the request's headers.
    """
    settings: Settings = state["settings"]
    limits = ProtocolSettings.of(settings)
    api = InferenceApi(app, state, knows_key)
    healthy = health.Health(is_ready, max_watchers=max(1, limits.grpc_max_calls // WATCHERS_SHARE))
    methods = {**api.methods(), **healthy.methods(), **reflection.methods((SERVICE, health.NAME))}
    server = GrpcServer(state, methods, upload_bound)
    listeners = await _listen(server, settings)
    log.info("grpc_started", host=settings.host, port=limits.grpc_port)
    try:
        yield
    finally:
        for listener in listeners:
            listener.close()
        healthy.stop()
        api.stop()
        # HTTP requests had the same time already.
        most = settings.shutdown_delay_seconds + settings.shutdown_grace_seconds
        await server.stop(state["draining"].left_seconds(most))


async def _listen(server: GrpcServer, settings: Settings) -> list[asyncio.Server]:
    """Listen on the port, ACCEPTED times: see gateway.server.serve."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if settings.workers > 1:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((settings.host, ProtocolSettings.of(settings).grpc_port))
        listener.setblocking(False)  # noqa: FBT003  # socket's
        sockets = [listener, *(listener.dup() for _ in range(ACCEPTED - 1))]
    except BaseException:
        listener.close()
        raise
    loop = asyncio.get_running_loop()
    return [await loop.create_server(lambda: GrpcConnection(server), sock=each, backlog=BACKLOG) for each in sockets]
