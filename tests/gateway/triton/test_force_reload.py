"""A force reload sends a configuration that Triton treats as changed."""

import asyncio

from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.model_config_pb2 import ModelConfig

from gateway.triton.grpc_endpoint import GrpcEndpoint


async def test_force_reload_sends_a_changed_configuration():
    sent: list[pb.RepositoryModelLoadRequest] = []

    class Stub:
        async def ModelConfig(self, request, **options):  # noqa: N802  # gRPC's name
            config = ModelConfig(name=request.name, max_batch_size=8)
            return pb.ModelConfigResponse(config=config)

        async def RepositoryModelLoad(self, request, **options):  # noqa: N802  # gRPC's name
            sent.append(request)
            return pb.RepositoryModelLoadResponse()

    endpoint = GrpcEndpoint("127.0.0.1:1")
    endpoint._stub = Stub()
    try:
        for _ in range(2):
            await endpoint.force_reload("net")
            await asyncio.sleep(0.001)
    finally:
        await endpoint.close()
    configs = [request.parameters["config"].string_param for request in sent]
    assert [request.model_name for request in sent] == ["net", "net"]
    assert all('"max_batch_size": 8' in config for config in configs)
    assert configs[0] != configs[1]
