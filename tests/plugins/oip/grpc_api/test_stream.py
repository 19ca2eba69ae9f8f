"""ModelStreamInfer: responses in order, errors that do not end the stream, its limits, and sequences."""

import asyncio

import grpc
from prometheus_client import REGISTRY
from tritonclient.grpc import service_pb2

from gateway.inference.sequence import SequenceScores, SequenceStep
from gateway_plugins.keys.key_file import add_key
from tests.doubles.backend import PNG, StubBackend
from tests.gateway.api.tensors import TEXT
from tests.gateway.triton.fleet import wait_until
from tests.plugins.oip.grpc_api.serving import (
    METHODS,
    connected,
    details,
    failure,
    gated,
    in_sequence,
    request,
    serving,
    stub,
)


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


async def test_requests_of_a_sequence_are_served_one_after_the_other(monkeypatch):
    """Though the first image takes longer than those after it."""
    add = StubBackend.add_to_sequence

    async def add_slowly(self, model_name: str, model_version: str, step: SequenceStep) -> SequenceScores:
        if step.start:
            for _ in range(50):
                await asyncio.sleep(0)
        return await add(self, model_name, model_version, step)

    monkeypatch.setattr(StubBackend, "add_to_sequence", add_slowly)
    messages = [in_sequence(request(PNG), 7, start=number == 0, end=number == 5) for number in range(6)]
    async with connected(stream_frames_in_flight=4) as channel:
        responses = await exchange(channel, messages)
    frames = [int.from_bytes(each.infer_response.raw_output_contents[3], "little") for each in responses]
    assert frames == [1, 2, 3, 4, 5, 6]


async def test_idle_stream_ends():
    async with connected(stream_idle_seconds=0.05) as channel:
        stream = channel.stream_stream(f"{METHODS}/ModelStreamInfer")()
        error = await failure(stream.read())
    assert (error.code(), details(error)[0].reason) == (grpc.StatusCode.DEADLINE_EXCEEDED, "STREAM_IDLE")


async def test_stream_beyond_the_limit_is_refused():
    async with connected(max_streams=1) as channel:
        first = channel.stream_stream(f"{METHODS}/ModelStreamInfer")()
        await first.write(request(PNG).SerializeToString())
        await first.read()
        error = await failure(exchange(channel, [request(PNG)]))
        assert (error.code(), details(error)[0].metadata["limit"]) == (grpc.StatusCode.UNAVAILABLE, "max_streams")
        await first.done_writing()
        assert await first.code() is grpc.StatusCode.OK
    assert REGISTRY.get_sample_value("gateway_streams") == 0


async def test_stream_needs_a_key(tmp_path):
    key = add_key(tmp_path / "keys", "app")
    async with connected(api_keys_file=tmp_path / "keys") as channel:
        error = await failure(exchange(channel, [request(PNG)]))
        assert error.code() is grpc.StatusCode.UNAUTHENTICATED
        assert len(await exchange(channel, [request(PNG)], metadata=(("x-api-key", key),))) == 1


async def test_requests_in_progress_are_answered_when_the_server_stops():
    backend = gated()
    async with serving(backend) as address:
        channel = grpc.aio.insecure_channel(address)
        stream = channel.stream_stream(f"{METHODS}/ModelStreamInfer")()
        await stream.write(request(PNG, id="last").SerializeToString())
        await wait_until(lambda: bool(backend.calls))
        asyncio.get_running_loop().call_later(0.05, backend.gate.set)
    response = service_pb2.ModelStreamInferResponse.FromString(await stream.read())
    assert (response.infer_response.id, response.error_message) == ("last", "")
    assert await stream.code() is grpc.StatusCode.UNAVAILABLE
    await channel.close()


async def test_idle_streams_end_when_the_server_stops():
    async with serving() as address:
        channel = grpc.aio.insecure_channel(address)
        stream = channel.stream_stream(f"{METHODS}/ModelStreamInfer")()
        await stream.write(request(PNG).SerializeToString())
        await stream.read()
    assert await stream.code() is grpc.StatusCode.UNAVAILABLE
    await channel.close()
