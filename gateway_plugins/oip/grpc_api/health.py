"""The standard health service: https://grpc.io/docs/guides/health-checking/.

Not the servicer of grpcio-health-checking: it writes to a watcher under a lock, so that a client that never reads would
stop the reports to all others, and it reads messages of any size before anything is checked.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2

from gateway.errors import GatewayError
from gateway.limits.arrivals import Arrivals
from gateway_plugins.oip.grpc_api.service import SERVICE
from gateway_plugins.oip.grpc_api.status import failure_of

NAME = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
WATCH_SECONDS = 1.0
"""How often a watched status is looked at."""

Context = Any
"""grpc.aio.ServicerContext, which has no types."""


class Health:
    """Reports the gateway's readiness for the server ("") and for the inference service; open to callers without a key.

    At most `max_watchers` calls may watch it. After `stop` the status is NOT_SERVING.
    """

    def __init__(self, is_ready: Callable[[], bool], arrivals: Arrivals, max_watchers: int) -> None:
        self._is_ready = is_ready
        self._arrivals = arrivals
        self._left_watchers = max_watchers
        self._stopped = False

    def handler(self) -> grpc.GenericRpcHandler:
        """The handler of the service, for a grpc.aio server."""
        methods = {"Check": self._check, "Watch": self._watch}
        return grpc.method_handlers_generic_handler(
            NAME, {name: grpc.stream_stream_rpc_method_handler(serve) for name, serve in methods.items()}
        )

    def stop(self) -> None:
        """Report NOT_SERVING from now on."""
        self._stopped = True

    def _status(self, service: str) -> int | None:
        """The status of a service; None for one that is not known."""
        if service not in {"", SERVICE}:
            return None
        ready = not self._stopped and self._is_ready()
        return int(health_pb2.HealthCheckResponse.SERVING if ready else health_pb2.HealthCheckResponse.NOT_SERVING)

    async def _check(self, _: object, context: Context) -> None:
        status = self._status(await self._service(context))
        if status is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"Health is known for {SERVICE} and for an empty name.")
        await context.write(health_pb2.HealthCheckResponse(status=status).SerializeToString())

    async def _watch(self, _: object, context: Context) -> None:
        service, sent = await self._service(context), None
        if not self._left_watchers:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "Too many calls watch the health; use Check.")
        self._left_watchers -= 1
        try:
            while True:
                status = self._status(service)
                if status is None:
                    status = int(health_pb2.HealthCheckResponse.SERVICE_UNKNOWN)
                if status != sent:
                    await context.write(health_pb2.HealthCheckResponse(status=status).SerializeToString())
                    sent = status
                await asyncio.sleep(WATCH_SECONDS)
        finally:
            self._left_watchers += 1

    async def _service(self, context: Context) -> str:
        """The name of the service that is asked for."""
        try:
            raw = await self._arrivals.receive(context.read)
            return str(health_pb2.HealthCheckRequest.FromString(raw if isinstance(raw, bytes) else b"").service)
        except GatewayError as error:
            failure = failure_of(error)
            await context.abort(failure.code, failure.message, failure.trailing)
            raise
        except DecodeError:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "The message is not a HealthCheckRequest.")
            raise
