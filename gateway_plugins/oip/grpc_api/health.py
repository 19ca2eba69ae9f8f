"""The standard health service: https://grpc.io/docs/guides/health-checking/."""

import asyncio
from collections.abc import Callable, Mapping

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2

from gateway_plugins.oip.grpc_api.call import Call
from gateway_plugins.oip.grpc_api.connection import Handler
from gateway_plugins.oip.grpc_api.service import SERVICE
from gateway_plugins.oip.grpc_api.status import Failure, Metadata

NAME = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
WATCH_SECONDS = 1.0
"""How often a watched status is looked at."""


class Health:
    """Reports the gateway's readiness for the server ("") and for the inference service; open to callers without a key.

    At most `max_watchers` calls may watch it. After `stop` the status is NOT_SERVING, and watches end.
    """

    def __init__(self, is_ready: Callable[[], bool], max_watchers: int) -> None:
        self._is_ready = is_ready
        self._left_watchers = max_watchers
        self._stopped = asyncio.Event()

    def methods(self) -> Mapping[bytes, Handler]:
        """The handlers by path."""
        return {f"/{NAME}/Check".encode(): self._check, f"/{NAME}/Watch".encode(): self._watch}

    def stop(self) -> None:
        """Report NOT_SERVING from now on."""
        self._stopped.set()

    def _status(self, service: str) -> int | None:
        """The status of a service; None for one that is not known."""
        if service not in {"", SERVICE}:
            return None
        ready = not self._stopped.is_set() and self._is_ready()
        return int(health_pb2.HealthCheckResponse.SERVING if ready else health_pb2.HealthCheckResponse.NOT_SERVING)

    async def _check(self, call: Call) -> Metadata:
        status = self._status(await _service(call))
        if status is None:
            message = f"Health is known for {SERVICE} and for an empty name."
            raise Failure(grpc.StatusCode.NOT_FOUND, message, "", ())
        await call.send([health_pb2.HealthCheckResponse(status=status).SerializeToString()])
        return ()

    async def _watch(self, call: Call) -> Metadata:
        service, sent = await _service(call), None
        if not self._left_watchers:
            message = "Too many calls watch the health; use Check."
            raise Failure(grpc.StatusCode.RESOURCE_EXHAUSTED, message, "", ())
        self._left_watchers -= 1
        try:
            while True:
                status = self._status(service)
                if status is None:
                    status = int(health_pb2.HealthCheckResponse.SERVICE_UNKNOWN)
                if status != sent:
                    await call.send([health_pb2.HealthCheckResponse(status=status).SerializeToString()])
                    sent = status
                if self._stopped.is_set():
                    raise Failure(grpc.StatusCode.UNAVAILABLE, "The server is stopping; call again.", "", ())
                try:
                    async with asyncio.timeout(WATCH_SECONDS):
                        await self._stopped.wait()
                except TimeoutError:
                    continue
        finally:
            self._left_watchers += 1


async def _service(call: Call) -> str:
    """The name of the service that is asked for."""
    raw = await call.receive(call.settings.max_header_bytes)
    try:
        return str(health_pb2.HealthCheckRequest.FromString(b"" if raw is None else bytes(raw)).service)
    except DecodeError:
        message = "The message is not a HealthCheckRequest."
        raise Failure(grpc.StatusCode.INVALID_ARGUMENT, message, "", ()) from None
