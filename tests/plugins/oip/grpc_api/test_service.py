"""The gRPC port: GRPCInferenceService, as tritonclient.grpc and KServe's clients call it, and the health."""

import asyncio
import socket

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import REGISTRY
from tritonclient.grpc import InferRequestedOutput, service_pb2
from tritonclient.grpc.aio import InferenceServerClient

from gateway import __version__
from gateway.app import create_app
from gateway.errors import (
    DeadlineExceeded,
    Forbidden,
    ModelNotFound,
    Overloaded,
    RequestTooLarge,
    SequenceUnknown,
    TritonUnreachable,
)
from gateway.server.serve import AddressUnusable, check_address
from gateway.settings import MIB
from gateway_plugins.keys.key_file import add_key
from gateway_plugins.oip.grpc_api import server
from gateway_plugins.oip.grpc_api.server import MAX_DESCRIPTION_BYTES, KeysRequired
from gateway_plugins.oip.plugin import GrpcUnavailable
from gateway_plugins.oip.routes.models import EXTENSIONS
from tests.doubles.backend import PNG
from tests.gateway.api.tensors import SCORES, TEXT, scorer
from tests.gateway.triton.fleet import wait_until
from tests.keys import key_of
from tests.plugins.oip.grpc_api.serving import (
    METHODS,
    channel_to,
    connected,
    details,
    failure,
    images,
    request,
    serving,
    stub,
)
from tests.processes import free_port
from tests.settings import Settings

MODEL = "ensemble_model"


async def test_server_and_model_are_described():
    async with serving() as address, InferenceServerClient(address) as client:
        assert await client.is_server_live()
        assert await client.is_server_ready()
        assert await client.is_model_ready(MODEL)
        assert await client.is_model_ready(MODEL, "1")
        assert not await client.is_model_ready(MODEL, "9")
        server = await client.get_server_metadata()
        assert (server.name, server.version) == ("triton-image-gateway", __version__)
        assert list(server.extensions) == EXTENSIONS
        model = await client.get_model_metadata(MODEL)
        assert (model.name, list(model.versions), model.platform) == (MODEL, ["1"], "ensemble")
        assert [(each.name, each.datatype, list(each.shape)) for each in model.inputs] == [("IMAGE", "BYTES", [-1])]
        assert [(each.name, list(each.shape)) for each in model.outputs] == [("PREDICTION", [-1, 2]), ("STATUS", [-1])]


async def test_scores_statuses_and_best_classes_are_tensors():
    backend = scorer()
    async with serving(backend) as address, InferenceServerClient(address) as client:
        result = await client.infer(MODEL, images(PNG, TEXT), request_id="mine", model_version="1", timeout=5_000_000)
        outputs = [InferRequestedOutput("PREDICTION", class_count=1)]
        best = await client.infer(MODEL, images(PNG), outputs=outputs)
    assert result.get_response().id == "mine"
    assert (result.get_response().model_name, result.get_response().model_version) == (MODEL, "1")
    scores = result.as_numpy("PREDICTION")
    assert (scores[0].tolist(), np.isnan(scores[1]).all()) == (SCORES.tolist(), True)
    assert result.as_numpy("STATUS").tolist() == [b"ok", b"unsupported_format"]
    assert 4 < backend.calls[0].deadline.left_seconds <= 5
    assert backend.calls[0].model_version == "1"
    assert best.as_numpy("PREDICTION").tolist() == [[b"0.750000:1:dog: large"]]
    assert best.as_numpy("STATUS") is None


async def test_images_may_be_in_the_tensor_itself():
    """As KServe's clients send them: InferTensorContents, not raw_input_contents."""
    message = service_pb2.ModelInferRequest(model_name=MODEL)
    message.inputs.add(name="IMAGE", datatype="BYTES", shape=[2]).contents.bytes_contents.extend([PNG, PNG])
    async with connected() as channel:
        response = await stub(channel).ModelInfer(message)
    assert [list(output.shape) for output in response.outputs] == [[2, 2], [2]]


async def test_headers_and_metadata_are_the_same():
    async with connected() as channel:
        call = stub(channel).ModelInfer(request(PNG), metadata=(("x-request-id", "mine"),))
        await call
        trailing = dict(await call.trailing_metadata())
    assert trailing["x-request-id"] == "mine"
    assert "infer;dur=" in trailing["server-timing"]


@pytest.mark.parametrize(
    ("fault", "code", "retry_seconds"),
    [
        (ModelNotFound(), grpc.StatusCode.NOT_FOUND, None),
        (SequenceUnknown(), grpc.StatusCode.FAILED_PRECONDITION, None),
        (Overloaded(), grpc.StatusCode.UNAVAILABLE, 1),
        (TritonUnreachable(), grpc.StatusCode.UNAVAILABLE, 5),
        (Forbidden(), grpc.StatusCode.PERMISSION_DENIED, None),
        (DeadlineExceeded(), grpc.StatusCode.DEADLINE_EXCEEDED, 1),
        (RequestTooLarge(), grpc.StatusCode.INVALID_ARGUMENT, None),
        (ValueError("secret"), grpc.StatusCode.INTERNAL, None),
    ],
)
async def test_errors_are_statuses_with_details(fault, code, retry_seconds):
    async with connected(scorer(fault)) as channel:
        error = await failure(stub(channel).ModelInfer(request(PNG), metadata=(("x-request-id", "mine"),)))
    found = details(error)
    assert error.code() is code
    assert "secret" not in error.details()
    assert found["x-request-id"] == "mine"
    assert found["error-code"] == getattr(fault, "code", "internal_error")
    assert found.get("retry-after") == (None if retry_seconds is None else str(retry_seconds))


@pytest.mark.parametrize(
    ("message", "reason", "text"),
    [
        (request(TEXT).SerializeToString(), "unsupported_format", "image"),
        (request().SerializeToString(), "no_files", "no images"),
        (request(PNG, id="x" * 70_000).SerializeToString(), "headers_too_large", ""),
        (service_pb2.ModelInferRequest(model_name=MODEL).SerializeToString(), "invalid_parameter", "IMAGE is missing"),
        (b"\xff\xff", "invalid_body", ""),
    ],
    ids=["no image", "no file", "long id", "no input", "no message"],
)
async def test_faults_of_a_request_are_invalid_arguments(message, reason, text):
    async with connected() as channel:
        error = await failure(channel.unary_unary(f"{METHODS}/ModelInfer")(message))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (details(error)["error-code"], text in error.details()) == (reason, True)


async def test_other_methods_and_compressed_messages_are_unimplemented():
    async with connected() as channel:
        error = await failure(stub(channel).RepositoryModelLoad(service_pb2.RepositoryModelLoadRequest()))
        packed = await failure(stub(channel).ModelInfer(request(bytes(10_000)), compression=grpc.Compression.Gzip))
    assert (error.code(), packed.code()) == (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNIMPLEMENTED)
    assert error.details().startswith("The gateway has no method /inference.GRPCInferenceService/RepositoryModelLoad.")


async def test_key_is_metadata(tmp_path):
    key = add_key(tmp_path / "keys", "app")
    async with connected(api_keys_file=tmp_path / "keys") as channel:
        calls = stub(channel)
        await calls.ServerLive(service_pb2.ServerLiveRequest())
        await calls.ServerReady(service_pb2.ServerReadyRequest())
        silent = channel.stream_unary(f"{METHODS}/ModelInfer")()  # sends nothing, and is refused all the same
        assert await silent.code() is grpc.StatusCode.UNAUTHENTICATED
        assert (await failure(calls.ModelInfer(request(PNG)))).code() is grpc.StatusCode.UNAUTHENTICATED
        error = await failure(calls.ServerMetadata(service_pb2.ServerMetadataRequest()))
        assert details(error)["error-code"] == "unauthorized"
        for metadata in (("x-api-key", key), ("authorization", f"Bearer {key}")):
            await calls.ModelInfer(request(PNG), metadata=(metadata,))


async def test_rate_of_a_key_is_resource_exhausted(tmp_path):
    metadata = tuple((name.lower(), key) for name, key in key_of(tmp_path / "keys", rate="1/h").items())
    async with connected(api_keys_file=tmp_path / "keys") as channel:
        calls = stub(channel)
        await calls.ModelInfer(request(PNG), metadata=metadata)
        error = await failure(calls.ModelInfer(request(PNG), metadata=metadata))
    found = details(error)
    assert (error.code(), found["error-code"]) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "rate_limited")
    assert 0 < int(found["retry-after"]) <= 2 * 3_600
    assert "ratelimit" in found


async def test_message_of_the_largest_image_is_read_and_a_larger_one_is_not():
    async with connected(max_file_bytes=MIB) as channel:
        calls = stub(channel)
        assert details(await failure(calls.ModelInfer(request(bytes(MIB)))))["error-code"] == "unsupported_format"
        error = await failure(calls.ModelInfer(request(bytes(MIB + MAX_DESCRIPTION_BYTES))))
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_calls_beyond_their_limit_are_refused(monkeypatch):
    monkeypatch.setattr(server, "MAX_CALLS", 1)
    backend = scorer()
    backend.gate.clear()
    async with connected(backend) as channel:
        calls = stub(channel)
        first = asyncio.ensure_future(calls.ModelInfer(request(PNG)))
        await wait_until(lambda: bool(backend.calls))
        error = await failure(calls.ServerMetadata(service_pb2.ServerMetadataRequest()))
        assert (error.code(), details(error)["limit"]) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "grpc_max_calls")
        assert (await calls.ServerLive(service_pb2.ServerLiveRequest())).live
        backend.gate.set()
        await first


async def test_message_is_counted_while_it_is_used(tmp_path):
    """In the upload buffer, which refuses what it cannot hold, and in the share of the key."""
    backend = scorer()
    backend.gate.clear()
    small = key_of(tmp_path / "keys", "small", share="0.1")
    other = key_of(tmp_path / "keys", "other")
    settings = {"api_keys_file": tmp_path / "keys", "max_file_bytes": MIB, "max_bytes_waiting": 8 * MIB}
    image = PNG + bytes(700_000)
    async with connected(backend, **settings) as channel:

        def infer(key: dict[str, str]) -> asyncio.Future:
            metadata = tuple((name.lower(), value) for name, value in key.items())
            return asyncio.ensure_future(failure(stub(channel).ModelInfer(request(image), metadata=metadata)))

        refused = await infer(small)  # the message and the image in it are more than a tenth
        assert (refused.code(), details(refused)["error-code"]) == (grpc.StatusCode.UNAVAILABLE, "overloaded")
        calls = [infer(other) for _ in range(16)]
        await wait_until(lambda: bool(backend.calls))
        assert REGISTRY.get_sample_value("gateway_waiting_bytes") > len(image)
        done, _ = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        assert details(done.pop().result())["limit"] == "max_bytes_waiting"
        backend.gate.set()
    assert REGISTRY.get_sample_value("gateway_waiting_bytes") == 0


async def test_path_in_a_model_name_is_no_route():
    """It was INTERNAL with a traceback."""
    async with connected() as channel:
        calls = stub(channel)
        for name, version in (("ensemble_model/ready", ""), ("ensemble_model", "1/ready"), ("", "")):
            metadata = await failure(calls.ModelMetadata(service_pb2.ModelMetadataRequest(name=name, version=version)))
            infer = await failure(calls.ModelInfer(request(PNG, model=name, model_version=version)))
            assert (metadata.code(), infer.code()) == (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.NOT_FOUND)
            assert not (await calls.ModelReady(service_pb2.ModelReadyRequest(name=name, version=version))).ready


async def test_cancelled_call_counts_as_a_client_that_left():
    before = REGISTRY.get_sample_value("gateway_client_disconnects_total")
    backend = scorer()
    backend.gate.clear()
    async with connected(backend) as channel:
        call = stub(channel).ModelInfer(request(PNG))
        await wait_until(lambda: bool(backend.calls))
        call.cancel()
        await wait_until(lambda: REGISTRY.get_sample_value("gateway_client_disconnects_total") == before + 1)


async def test_requests_of_a_sequence_are_added():
    async with connected() as channel:
        for number in range(3):
            message = request(PNG)
            message.parameters["sequence_id"].int64_param = 7
            message.parameters["sequence_start"].bool_param = number == 0
            message.parameters["sequence_end"].bool_param = number == 2
            response = await stub(channel).ModelInfer(message)
            assert int.from_bytes(response.raw_output_contents[3], "little") == number + 1


async def test_stop_answers_what_is_in_progress():
    backend = scorer()
    async with asyncio.timeout(20):
        async with serving(backend, shutdown_grace_seconds=60) as address:
            channel = grpc.aio.insecure_channel(address)
            backend.gate.clear()
            call = asyncio.ensure_future(stub(channel).ModelInfer(request(PNG)))
            await wait_until(lambda: bool(backend.calls))
            asyncio.get_running_loop().call_later(0.05, backend.gate.set)
    assert len((await call).outputs) == 2
    await channel.close()


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
        backend.ready = False
        assert await check(channel) == NOT_SERVING


def test_port_that_cannot_be_used_is_named():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        settings = Settings(_env_file=None, port=free_port(), grpc_port=listener.getsockname()[1])
        with pytest.raises(AddressUnusable, match="GATEWAY_GRPC_PORT"):
            check_address(settings)
    with pytest.raises(ValueError, match="GATEWAY_GRPC_PORT and GATEWAY_PORT are the same port"):
        Settings(_env_file=None, port=8080, grpc_port=8080)


async def test_port_for_other_machines_needs_keys(tmp_path):
    with pytest.raises(KeysRequired, match="GATEWAY_API_KEYS_FILE"):
        async with serving(host="0.0.0.0"):  # noqa: S104  # what is refused
            pass
    add_key(tmp_path / "keys", "app")
    async with serving(host="::", api_keys_file=tmp_path / "keys") as address, channel_to(address) as channel:
        assert (await stub(channel).ServerLive(service_pb2.ServerLiveRequest())).live


def test_missing_packages_are_named(monkeypatch):
    monkeypatch.setattr("gateway_plugins.oip.plugin.PACKAGES", ("nothing_of_this_name",))
    with pytest.raises(GrpcUnavailable, match=r"nothing_of_this_name.*\[grpc\]"):
        create_app(Settings(_env_file=None, grpc_port=free_port()), scorer())
