"""Tensors that pass through ModelInfer to models of Triton that classify no images."""

import grpc
import numpy as np
import pytest
from tritonclient.grpc import InferInput, service_pb2
from tritonclient.grpc.aio import InferenceServerClient

from tests.plugins.oip.echo import MODEL, EchoBackend
from tests.plugins.oip.grpc_api.serving import connected, details, failure, serving, stub


def request(rows: int = 1, width: int = 2, model: str = MODEL) -> service_pb2.ModelInferRequest:
    message = service_pb2.ModelInferRequest(model_name=model, id="7")
    message.inputs.add(name="IDS", datatype="INT32", shape=[rows, width])
    message.raw_input_contents.append(np.arange(rows * width, dtype=np.int32).tobytes())
    return message


@pytest.mark.parametrize("kind", [np.float32, np.float16, np.int64, np.bool_, np.object_])
async def test_tensors_of_each_type_come_back(kind):
    values = np.array([["a", "é"], ["", "b"]], np.object_) if kind is np.object_ else np.eye(2, 3).astype(kind)
    names = {np.float32: "FP32", np.float16: "FP16", np.int64: "INT64", np.bool_: "BOOL", np.object_: "BYTES"}
    inputs = [
        InferInput("ONE", values.shape, names[kind]).set_data_from_numpy(values),
        InferInput("IDS", [2], "INT32").set_data_from_numpy(np.array([4, 5], np.int32)),
    ]
    async with serving(EchoBackend(), v2_models=MODEL) as address, InferenceServerClient(address) as client:
        answer = await client.infer(MODEL, inputs, request_id="7")
        assert await client.is_model_ready(MODEL)
        assert (await client.get_model_metadata(MODEL)).platform == "python"
    found = answer.as_numpy("ONE")
    expected = (
        np.array([[each.encode() for each in row] for row in values], np.object_) if kind is np.object_ else values
    )
    assert (found.dtype, found.tolist()) == (expected.dtype, expected.tolist())
    assert answer.as_numpy("IDS").tolist() == [4, 5]
    assert answer.get_response().id == "7"


async def test_streamed_requests_are_answered_in_their_order():
    async with connected(EchoBackend(), v2_models=MODEL) as channel:

        async def requests():
            for rows in (1, 2, 3):
                yield request(rows)

        shapes = [
            list(each.infer_response.outputs[0].shape) async for each in stub(channel).ModelStreamInfer(requests())
        ]
    assert shapes == [[1, 2], [2, 2], [3, 2]]


async def test_values_in_typed_contents_are_refused():
    """As KServe's clients may send them: nothing may be inferred from a tensor without its values."""
    message = service_pb2.ModelInferRequest(model_name=MODEL)
    message.inputs.add(name="IDS", datatype="INT32", shape=[1, 2]).contents.int_contents.extend([1, 2])
    backend = EchoBackend()
    async with connected(backend, v2_models=MODEL) as channel:
        error = await failure(stub(channel).ModelInfer(message))
    assert (error.code(), details(error)[0].reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_PARAMETER")
    assert "raw_input_contents" in error.details()
    assert not backend.requests
