"""The gRPC port: GRPCInferenceService, as tritonclient.grpc and KServe's clients call it, health and reflection."""

import asyncio
import socket

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from prometheus_client import REGISTRY
from tritonclient.grpc import InferRequestedOutput, service_pb2
from tritonclient.grpc.aio import InferenceServerClient

from gateway import __version__
from gateway.errors import (
    DeadlineExceeded,
    Forbidden,
    ModelNotFound,
    Overloaded,
    RequestTooLarge,
    SequenceUnknown,
    TritonUnreachable,
)
from gateway.plugins.keys.key_file import add_key
from gateway.plugins.oip.grpc_api import server
from gateway.plugins.oip.grpc_api.server import MAX_OVERHEAD_BYTES, KeysRequired
from gateway.plugins.oip.routes.models import EXTENSIONS
from gateway.server.serve import AddressUnusable, check_address
from gateway.settings import MIB
from tests.doubles.backend import PNG
from tests.gateway.api.tensors import SCORES, TEXT, scorer
from tests.gateway.plugins.oip.grpc_api.serving import (
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
from tests.gateway.triton.fleet import wait_until
from tests.keys import key_of
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
    info, retry = details(error)
    assert error.code() is code
    assert "secret" not in error.details()
    assert (info.domain, info.metadata["request_id"]) == ("triton-image-gateway", "mine")
    assert info.reason == getattr(fault, "code", "internal_error").upper()
    assert (None if retry is None else retry.retry_delay.seconds) == retry_seconds


@pytest.mark.parametrize(
    ("message", "reason", "text"),
    [
        (request(TEXT).SerializeToString(), "UNSUPPORTED_FORMAT", "image"),
        (request().SerializeToString(), "NO_FILES", "no images"),
        (request(PNG, id="x" * 70_000).SerializeToString(), "INVALID_BODY", "8 KiB"),
        (service_pb2.ModelInferRequest(model_name=MODEL).SerializeToString(), "INVALID_PARAMETER", "IMAGE is missing"),
        (b"\xff\xff", "INVALID_BODY", ""),
    ],
    ids=["no image", "no file", "long id", "no input", "no message"],
)
async def test_faults_of_a_request_are_invalid_arguments(message, reason, text):
    async with connected() as channel:
        error = await failure(channel.unary_unary(f"{METHODS}/ModelInfer")(message))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (details(error)[0].reason, text in error.details()) == (reason, True)


async def test_other_methods_and_compressed_messages_are_unimplemented():
    async with connected() as channel:
        error = await failure(stub(channel).RepositoryModelLoad(service_pb2.RepositoryModelLoadRequest()))
        packed = await failure(stub(channel).ModelInfer(request(bytes(10_000)), compression=grpc.Compression.Gzip))
    assert (error.code(), packed.code()) == (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNIMPLEMENTED)


async def test_key_is_metadata(tmp_path):
    key = add_key(tmp_path / "keys", "app")
    async with connected(api_keys_file=tmp_path / "keys") as channel:
        calls = stub(channel)
        await calls.ServerLive(service_pb2.ServerLiveRequest())
        await calls.ServerReady(service_pb2.ServerReadyRequest())
        silent = channel.stream_unary(f"{METHODS}/ModelInfer")()  # sends nothing, and is refused all the same
        assert await silent.code() is grpc.StatusCode.UNAUTHENTICATED
        for refused in (calls.ModelInfer(request(PNG)), exchange(channel, [request(PNG)])):
            assert (await failure(refused)).code() is grpc.StatusCode.UNAUTHENTICATED
        error = await failure(calls.ServerMetadata(service_pb2.ServerMetadataRequest()))
        assert details(error)[0].reason == "UNAUTHORIZED"
        for metadata in (("x-api-key", key), ("authorization", f"Bearer {key}")):
            await calls.ModelInfer(request(PNG), metadata=(metadata,))
            assert len(await exchange(channel, [request(PNG)], metadata=(metadata,))) == 1


async def test_rate_of_a_key_is_resource_exhausted(tmp_path):
    metadata = tuple((name.lower(), key) for name, key in key_of(tmp_path / "keys", rate="1/h").items())
    async with connected(api_keys_file=tmp_path / "keys") as channel:
        calls = stub(channel)
        await calls.ModelInfer(request(PNG), metadata=metadata)
        error = await failure(calls.ModelInfer(request(PNG), metadata=metadata))
    info, retry = details(error)
    assert (error.code(), info.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "RATE_LIMITED")
    assert 0 < retry.retry_delay.seconds <= 2 * 3_600
    assert "ratelimit" in dict(error.trailing_metadata())


async def test_message_of_the_largest_image_is_read_and_a_larger_one_is_not():
    async with connected(max_file_bytes=MIB) as channel:
        calls = stub(channel)
        assert details(await failure(calls.ModelInfer(request(bytes(MIB)))))[0].reason == "UNSUPPORTED_FORMAT"
        error = await failure(calls.ModelInfer(request(bytes(MIB + MAX_OVERHEAD_BYTES))))
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize(
    ("limit", "code", "ask"),
    [
        (
            "grpc_max_calls",
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            lambda channel: stub(channel).ServerMetadata(service_pb2.ServerMetadataRequest()),
        ),
        ("max_streams", grpc.StatusCode.UNAVAILABLE, lambda channel: exchange(channel, [request(PNG)])),
    ],
    ids=["call", "stream"],
)
async def test_calls_and_streams_beyond_their_limit_are_refused(monkeypatch, limit, code, ask):
    if limit == "grpc_max_calls":
        monkeypatch.setattr(server, "MAX_CALLS", 1)
    settings = {"max_streams": 1 if limit == "max_streams" else 64}
    async with serving(**settings) as address, channel_to(address) as channel, channel_to(address) as other:
        stream = channel.stream_stream(f"{METHODS}/ModelStreamInfer")()
        await stream.write(request(PNG).SerializeToString())
        await stream.read()
        error = await failure(ask(other))
        assert (error.code(), details(error)[0].metadata["limit"]) == (code, limit)
        assert (await stub(other).ServerLive(service_pb2.ServerLiveRequest())).live
        await stream.done_writing()
        assert await stream.code() is grpc.StatusCode.OK
    assert REGISTRY.get_sample_value("gateway_streams") == 0


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
        assert (refused.code(), details(refused)[0].reason) == (grpc.StatusCode.UNAVAILABLE, "OVERLOADED")
        calls = [infer(other) for _ in range(16)]
        await wait_until(lambda: bool(backend.calls))
        assert REGISTRY.get_sample_value("gateway_waiting_bytes") > len(image)
        done, _ = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        assert details(done.pop().result())[0].metadata["limit"] == "max_bytes_waiting"
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


async def exchange(channel: grpc.aio.Channel, messages: list, **options) -> list[service_pb2.ModelStreamInferResponse]:
    async def send():
        for message in messages:
            yield message

    return [response async for response in stub(channel).ModelStreamInfer(send(), **options)]


async def test_responses_have_the_order_of_the_requests():
    async with connected() as channel:
        responses = await exchange(channel, [request(PNG, id=str(number)) for number in range(20)])
    assert [each.infer_response.id for each in responses] == [str(number) for number in range(20)]
    assert not any(each.error_message for each in responses)


async def test_failed_request_does_not_end_the_stream():
    async with connected() as channel:
        bad, good = await exchange(channel, [request(TEXT, id="bad"), request(PNG, id="good")])
    assert "image" in bad.error_message
    assert bad.infer_response.id == "bad"
    assert bad.infer_response.parameters["error_code"].string_param == "unsupported_format"
    assert (good.error_message, good.infer_response.id) == ("", "good")


async def test_idle_stream_ends(monkeypatch):
    monkeypatch.setattr("gateway.plugins.oip.grpc_api.service.STREAM_IDLE_SECONDS", 0.05)
    async with connected() as channel:
        stream = channel.stream_stream(f"{METHODS}/ModelStreamInfer")()
        error = await failure(stream.read())
    assert (error.code(), details(error)[0].reason) == (grpc.StatusCode.DEADLINE_EXCEEDED, "STREAM_IDLE")


async def test_stop_answers_what_is_in_progress_and_ends_the_rest_at_once():
    """A call and a request of a stream are answered before; a stream without a request and a watch end at once."""
    backend = scorer()
    async with asyncio.timeout(20):
        async with serving(backend, shutdown_grace_seconds=60) as address:
            channel = grpc.aio.insecure_channel(address)
            idle, busy = (channel.stream_stream(f"{METHODS}/ModelStreamInfer")() for _ in range(2))
            watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
            assert (await watch.read()).status == SERVING
            await idle.write(request(PNG).SerializeToString())
            await idle.read()
            backend.gate.clear()
            await busy.write(request(PNG, id="last").SerializeToString())
            call = asyncio.ensure_future(stub(channel).ModelInfer(request(PNG)))
            await wait_until(lambda: len(backend.calls) == 3)
            asyncio.get_running_loop().call_later(0.05, backend.gate.set)
    response = service_pb2.ModelStreamInferResponse.FromString(await busy.read())
    assert (response.infer_response.id, response.error_message) == ("last", "")
    assert len((await call).outputs) == 2
    assert [await stream.code() for stream in (idle, busy)] == [grpc.StatusCode.UNAVAILABLE] * 2
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
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == SERVING
        backend.ready = False
        assert (await watch.read()).status == NOT_SERVING
        assert await check(channel) == NOT_SERVING


async def test_watches_are_limited(monkeypatch):
    monkeypatch.setattr(server, "MAX_WATCHES", 2)
    async with connected() as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        watches = [stub.Watch(health_pb2.HealthCheckRequest()) for _ in range(2)]
        assert [(await watch.read()).status for watch in watches] == [SERVING] * 2
        error = await failure(stub.Watch(health_pb2.HealthCheckRequest()).read())
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await check(channel) == SERVING


async def test_reflection_lists_and_describes_the_services():
    request = reflection_pb2.ServerReflectionRequest
    async with connected() as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        asked = iter([request(list_services=""), request(file_containing_symbol=SERVICE)])
        listed, described = [response async for response in stub.ServerReflectionInfo(asked)]
    names = {service.name for service in listed.list_services_response.service}
    assert names >= {SERVICE, "grpc.health.v1.Health"}
    assert described.file_descriptor_response.file_descriptor_proto


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
