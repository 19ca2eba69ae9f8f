"""The standard health service and reflection, which grpcurl and Kubernetes use, and the port."""

import asyncio
import socket

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from gateway.app import create_app
from gateway.server.serve import AddressUnusable, check_address
from gateway_plugins.oip.grpc_api.requirements import GrpcUnavailable
from tests.gateway.api.tensors import scorer
from tests.plugins.oip.grpc_api.serving import connected, failure, serving
from tests.processes import free_port
from tests.settings import Settings

SERVICE = "inference.GRPCInferenceService"
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


async def check(channel: grpc.aio.Channel, service: str = "") -> int:
    stub = health_pb2_grpc.HealthStub(channel)
    return (await stub.Check(health_pb2.HealthCheckRequest(service=service), wait_for_ready=True)).status


async def test_health_is_that_of_the_gateway():
    backend = scorer()
    async with connected(backend) as channel:
        assert [await check(channel, name) for name in ("", SERVICE)] == [SERVING, SERVING]
        assert (await failure(check(channel, "other"))).code() is grpc.StatusCode.NOT_FOUND
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == SERVING
        backend.ready = False
        assert (await watch.read()).status == NOT_SERVING
        assert await check(channel) == NOT_SERVING


async def test_watchers_have_a_part_of_the_calls():
    async with connected(grpc_max_calls=8) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        watches = [stub.Watch(health_pb2.HealthCheckRequest()) for _ in range(2)]
        assert [(await watch.read()).status for watch in watches] == [SERVING] * 2
        error = await failure(stub.Watch(health_pb2.HealthCheckRequest()).read())
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await check(channel) == SERVING


async def test_watched_server_stops_at_once():
    async with asyncio.timeout(20):
        async with serving(shutdown_grace_seconds=60) as address:
            channel = grpc.aio.insecure_channel(address)
            watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
            assert (await watch.read()).status == SERVING
    await channel.close()


async def test_reflection_lists_and_describes_the_services():
    request = reflection_pb2.ServerReflectionRequest
    async with connected() as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        asked = iter([request(list_services=""), request(file_containing_symbol=SERVICE)])
        listed, described = [response async for response in stub.ServerReflectionInfo(asked)]
    names = {service.name for service in listed.list_services_response.service}
    assert names >= {SERVICE, "grpc.health.v1.Health"}
    assert described.file_descriptor_response.file_descriptor_proto


def test_taken_port_is_named():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        settings = Settings(_env_file=None, port=free_port(), grpc_port=listener.getsockname()[1])
        with pytest.raises(AddressUnusable, match="GATEWAY_GRPC_PORT"):
            check_address(settings)


def test_port_of_the_http_api_is_refused():
    with pytest.raises(ValueError, match="GATEWAY_GRPC_PORT and GATEWAY_PORT are the same port"):
        Settings(_env_file=None, port=8080, grpc_port=8080)


def test_missing_packages_are_named(monkeypatch):
    monkeypatch.setattr("gateway_plugins.oip.grpc_api.requirements.PACKAGES", ("nothing_of_this_name",))
    with pytest.raises(GrpcUnavailable, match=r"nothing_of_this_name.*\[grpc\]"):
        create_app(Settings(_env_file=None, grpc_port=free_port()), scorer())
