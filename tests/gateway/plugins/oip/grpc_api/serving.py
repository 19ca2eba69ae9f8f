"""An application in this process with its gRPC port, and calls of it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import numpy as np
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status
from tritonclient.grpc import InferInput, service_pb2
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from gateway.app import create_app
from tests.doubles.backend import StubBackend
from tests.gateway.api.tensors import scorer
from tests.processes import free_port
from tests.settings import Settings

METHODS = "/inference.GRPCInferenceService"


@asynccontextmanager
async def serving(backend: StubBackend | None = None, **settings: Any) -> AsyncIterator[str]:
    """The address of the gRPC port of an application with these settings and no others."""
    port = free_port()
    app = create_app(Settings(_env_file=None, grpc_port=port, **settings), backend or scorer())
    async with app.router.lifespan_context(app):
        yield f"127.0.0.1:{port}"


def channel_to(address: str) -> grpc.aio.Channel:
    """A channel with a new connection."""
    return grpc.aio.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)])


@asynccontextmanager
async def connected(backend: StubBackend | None = None, **settings: Any) -> AsyncIterator[grpc.aio.Channel]:
    async with serving(backend, **settings) as address, channel_to(address) as channel:
        yield channel


def stub(channel: grpc.aio.Channel) -> GRPCInferenceServiceStub:
    return GRPCInferenceServiceStub(channel)


def images(*contents: bytes) -> list[InferInput]:
    array = np.array(contents, dtype=np.object_)
    return [InferInput("IMAGE", [len(contents)], "BYTES").set_data_from_numpy(array)]


def request(*contents: bytes, model: str = "ensemble_model", **members: Any) -> service_pb2.ModelInferRequest:
    """A request by hand, with the images in raw_input_contents."""
    message = service_pb2.ModelInferRequest(model_name=model, **members)
    message.inputs.add(name="IMAGE", datatype="BYTES", shape=[len(contents)])
    message.raw_input_contents.append(b"".join(len(each).to_bytes(4, "little") + each for each in contents))
    return message


async def failure(call: Any) -> grpc.aio.AioRpcError:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error
    raise AssertionError("the call has not failed")


def details(error: grpc.aio.AioRpcError) -> tuple[ErrorInfo, RetryInfo | None]:
    """The details of an error, after a check that their code and message equal the status."""
    rich = Status.FromString(dict(error.trailing_metadata())["grpc-status-details-bin"])
    assert (rich.code, rich.message) == (error.code().value[0], error.details())
    info, retry = ErrorInfo(), RetryInfo()
    assert rich.details[0].Unpack(info)
    return info, retry if len(rich.details) > 1 and rich.details[1].Unpack(retry) else None
