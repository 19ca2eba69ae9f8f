"""Requests with tensors, in JSON and as binary data."""

import asyncio
import json
import sys

import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb

from gateway.errors import InvalidBody, InvalidParameter, RequestTooLarge
from gateway_plugins.oip import tensors


def body(data: object, datatype: str = "INT32", shape: tuple[int, ...] = (4,)) -> bytes:
    return json.dumps({"inputs": [{"name": "x", "datatype": datatype, "shape": shape, "data": data}]}).encode()


@pytest.mark.parametrize("data", [[1, 2, 3, 4], [[1, 2], [3, 4]], [[[1], [2]], [[3], [4]]]])
def test_nested_data_is_row_major(data):
    message = tensors.parse(body(data), None).message
    assert np.frombuffer(message.raw_input_contents[0], "<i4").tolist() == [1, 2, 3, 4]


def test_floats_may_be_whole_numbers():
    message = tensors.parse(body([1, 2.5, 3, -4], "FP32"), None).message
    assert np.frombuffer(message.raw_input_contents[0], "<f4").tolist() == [1, 2.5, 3, -4]


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"data": [1, [2, 3, 4]]}, "x"),
        ({"data": [1, 2, 3, True]}, "is not INT32"),
        ({"data": [1, 2, 3, 4.5]}, "is not INT32"),
        ({"data": [1, 2, 3, 2**31]}, "x"),
        ({"data": [1, 2, 3, None], "datatype": "FP32"}, "is not FP32"),
        ({"data": [True, False, True, 1], "datatype": "BOOL"}, "is not BOOL"),
        ({"data": [1, 2, 3, 256], "datatype": "UINT8"}, "x"),
        ({"data": [1, 2, 3, {}]}, "is not INT32"),
        ({"data": ["a", "b", "c", 1], "datatype": "BYTES"}, "must be a text"),
        ({"data": [1, 2, 3]}, "data has 3 values"),
        ({"data": None}, "must be an array"),
        ({"datatype": "FP16"}, "must be binary data"),
        ({"parameters": {"shared_memory_region": "x"}}, "shared memory is not supported"),
        ({"parameters": {"binary_data_size": 5}}, "needs either data or"),
        ({"shape": [-1]}, "must be a whole number"),
    ],
)
def test_input_that_does_not_fit_is_refused(members, words):
    given = {"name": "x", "datatype": "INT32", "shape": [4], "data": [1, 2, 3, 4], **members}
    with pytest.raises(InvalidParameter, match=words):
        tensors.parse(json.dumps({"inputs": [given]}).encode(), None)


def test_json_up_to_its_limit_is_read():
    whole = body([1, 2, 3, 4])
    assert tensors.parse(whole.ljust(tensors.MAX_JSON_BYTES), None).message.inputs[0].name == "x"
    with pytest.raises(RequestTooLarge, match="binary data"):
        tensors.parse(whole.ljust(tensors.MAX_JSON_BYTES + 1), None)
    with pytest.raises(InvalidBody):
        tensors.parse(whole + b"]", None)


async def test_event_loop_runs_while_large_json_is_decoded():
    count = 300_000
    large = body([1] * count, shape=(count,))
    assert tensors.INLINE_JSON_BYTES < len(large) <= tensors.MAX_JSON_BYTES
    reading = asyncio.ensure_future(tensors.read(large, None))
    iterations = 0
    while not reading.done():
        await asyncio.sleep(sys.getswitchinterval() / 10)
        iterations += 1
    assert len((await reading).message.raw_input_contents[0]) == 4 * count
    assert iterations > 5


@pytest.mark.parametrize("datatype", ["BYTES", "INT32"])
async def test_long_outputs_are_written_in_parts(datatype):
    """All values arrive, in their order, and the event loop runs between two parts."""
    count = 3 * tensors.VALUES_AT_ONCE + 1
    values = [f"é{number}" for number in range(count)] if datatype == "BYTES" else list(range(count))
    request = tensors.parse(body(values, datatype, (count,)), None)
    answer = pb.ModelInferResponse(model_name="m", raw_output_contents=request.message.raw_input_contents)
    answer.outputs.add(name="x", datatype=datatype, shape=[count])
    encoding = asyncio.ensure_future(tensors.encode(answer, request))
    iterations = 0
    while not encoding.done():
        await asyncio.sleep(0)
        iterations += 1
    pieces, json_bytes = await encoding
    assert json_bytes is None
    assert json.loads(b"".join(pieces))["outputs"] == [
        {"name": "x", "datatype": datatype, "shape": [count], "data": values}
    ]
    assert iterations > 1
