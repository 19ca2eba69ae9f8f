"""Reflection, versions 1 and 1alpha, whose messages are the same: https://grpc.io/docs/guides/reflection/."""

from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial

import grpc
from google.protobuf.message import DecodeError
from grpc_reflection.v1alpha import reflection, reflection_pb2

from gateway_plugins.oip.grpc_api.call import Call
from gateway_plugins.oip.grpc_api.connection import Handler
from gateway_plugins.oip.grpc_api.status import Failure, Metadata

NAMES = (reflection.SERVICE_NAME, "grpc.reflection.v1.ServerReflection")


def methods(services: Sequence[str]) -> Mapping[bytes, Handler]:
    """The handlers by path; they describe these services and their own."""
    servicer = reflection.aio.ReflectionServicer((*services, *NAMES))
    return {f"/{name}/ServerReflectionInfo".encode(): partial(_reflect, servicer) for name in NAMES}


async def _reflect(servicer: reflection.aio.ReflectionServicer, call: Call) -> Metadata:
    async def requests() -> AsyncIterator[reflection_pb2.ServerReflectionRequest]:
        while (raw := await call.receive(call.settings.max_header_bytes)) is not None:
            call.incoming.release(len(raw))
            yield reflection_pb2.ServerReflectionRequest.FromString(bytes(raw))

    try:
        async for response in servicer.ServerReflectionInfo(requests(), None):
            await call.send([response.SerializeToString()])
    except DecodeError:
        message = "The message is not a ServerReflectionRequest."
        raise Failure(grpc.StatusCode.INVALID_ARGUMENT, message, "", ()) from None
    return ()
