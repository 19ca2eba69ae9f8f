"""The standard services: health (https://grpc.io/docs/guides/health-checking/) and reflection, v1 and v1alpha."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

import grpc
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection as grpc_reflection
from grpc_reflection.v1alpha import reflection_pb2

from gateway.plugins.oip.grpc_api.call import Call
from gateway.plugins.oip.grpc_api.service import SERVICE, Handler, parsed, receive
from gateway.plugins.oip.grpc_api.status import Failure, Metadata

HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
REFLECTIONS = (grpc_reflection.SERVICE_NAME, "grpc.reflection.v1.ServerReflection")
WATCH_SECONDS = 1.0
"""Interval in which a watched status is checked."""
MAX_WATCHERS = 16
"""Calls that may watch the health; they need no API key."""
READ_SECONDS = 2.0
"""How long a client may take to send a request of these services, which is small."""
_STATUSES = health_pb2.HealthCheckResponse


class Health:
    """Reports the gateway's readiness for the server ("") and for the inference service; open to callers without a key.

    After `stop` the status is NOT_SERVING, and watches end.
    """

    def __init__(self, is_ready: Callable[[], bool]) -> None:
        self._is_ready = is_ready
        self._left_watchers = MAX_WATCHERS
        self._stopped = asyncio.Event()

    def methods(self) -> Mapping[str, Handler]:
        """The handlers by path."""
        return {f"/{HEALTH}/Check": self._check, f"/{HEALTH}/Watch": self._watch}

    def stop(self) -> None:
        """Report NOT_SERVING from now on."""
        self._stopped.set()

    def _status(self, service: str) -> int:
        if service not in {"", SERVICE}:
            return int(_STATUSES.SERVICE_UNKNOWN)
        return int(_STATUSES.NOT_SERVING if self._stopped.is_set() or not self._is_ready() else _STATUSES.SERVING)

    async def _check(self, call: Call) -> Metadata:
        request = await receive(call, health_pb2.HealthCheckRequest, READ_SECONDS)
        status = self._status(request.service)
        if status == _STATUSES.SERVICE_UNKNOWN:
            message = f"Health is known for {SERVICE} and for an empty name."
            raise Failure(grpc.StatusCode.NOT_FOUND, message, "", ())
        await call.send(_STATUSES(status=status).SerializeToString())
        return ()

    async def _watch(self, call: Call) -> Metadata:
        if not self._left_watchers:
            message = "Too many calls watch the health; use Check."
            raise Failure(grpc.StatusCode.RESOURCE_EXHAUSTED, message, "", ())
        self._left_watchers -= 1
        try:
            request, sent = await receive(call, health_pb2.HealthCheckRequest, READ_SECONDS), None
            while True:
                if (status := self._status(request.service)) != sent:
                    await call.send(_STATUSES(status=status).SerializeToString())
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


def reflection(services: Sequence[str], check_key: Callable[[Call], Awaitable[None]]) -> Mapping[str, Handler]:
    """The handlers of both versions, whose messages are the same; they describe these services and their own."""
    servicer = grpc_reflection.aio.ReflectionServicer((*services, *REFLECTIONS))

    async def requests(call: Call) -> AsyncIterator[Any]:
        while (raw := await call.receive_next(READ_SECONDS)) is not None:
            call.release(len(raw))
            yield parsed(reflection_pb2.ServerReflectionRequest, raw)

    async def reflect(call: Call) -> Metadata:
        await check_key(call)
        async for response in servicer.ServerReflectionInfo(requests(call), None):
            await call.send(response.SerializeToString())
        return ()

    return {f"/{name}/ServerReflectionInfo": reflect for name in REFLECTIONS}
