"""Requests of the Open Inference Protocol: tritonclient's, and malformed ones."""

import base64
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.http import InferenceServerClient, InferInput

from gateway.errors import (
    GatewayError,
    InvalidBody,
    InvalidImage,
    InvalidParameter,
    RequestError,
    RequestTooLarge,
    TooManyFiles,
)
from gateway.ingest.upload import Upload
from gateway.plugins.oip.members import InferenceRequest
from gateway.plugins.oip.reader import InferenceReader
from tests.gateway.ingest.reading import LIMITS, allocates_at_most, collect_until_error, in_chunks, limits

Read = tuple[list[Upload], Exception | None, InferenceReader]
PICTURE = [base64.b64encode(b"a picture").decode()]
chunk_sizes = st.lists(st.integers(1, 200), min_size=1)
pictures = st.lists(st.binary(max_size=100), min_size=1, max_size=6)


def written(images: list[bytes], *, column: bool = False, **options) -> tuple[bytes, int | None]:
    """A body and its header's length, by tritonclient."""
    array = np.array(images, dtype=np.object_)
    array = array.reshape(-1, 1) if column else array
    tensor = InferInput("IMAGE", list(array.shape), "BYTES").set_data_from_numpy(array)
    return InferenceServerClient.generate_request_body([tensor], **options)


def read(body: bytes | dict, header: int | None = None, limits=LIMITS, sizes=(65_536,)) -> Read:
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    reader = InferenceReader(in_chunks(body, sizes), header, limits)
    uploads, error = collect_until_error(reader.uploads(), GatewayError)
    return uploads, error, reader


def refusal(body: bytes | dict, header: int | None = None, limits=LIMITS) -> RequestError:
    _, error, _ = read(body, header, limits)
    assert isinstance(error, RequestError)
    return error


def asking(data: object = PICTURE, **members) -> dict:
    """A request in JSON with one input, of which `members` replaces some; None leaves one out."""
    count = len(data) if isinstance(data, list) else 0
    tensor = {"name": "IMAGE", "shape": [count], "datatype": "BYTES", "data": data, **members}
    return {"inputs": [{name: value for name, value in tensor.items() if value is not None}]}


def binary(*elements: tuple[int, bytes], parameters: dict | None = None, **members) -> tuple[bytes, int]:
    """A body with binary data of elements with any declared length, and its header's length."""
    data = b"".join(length.to_bytes(4, "little") + content for length, content in elements)
    parameters = {"binary_data_size": len(data), **(parameters or {})}
    head = json.dumps(asking(None, **{"shape": [len(elements)], "parameters": parameters, **members})).encode()
    return head + data, len(head)


def asking_for(output: str = "PREDICTION", **parameters) -> dict:
    """A request in JSON for one output, with parameters of that output."""
    return {**asking(), "outputs": [{"name": output, "parameters": parameters}]}


BINARY = binary((3, b"abc"))
OUT_OF_RANGE = (2**63, 10**400, 10**4_299)


@given(pictures, st.booleans(), chunk_sizes)
def test_requests_of_tritonclient_are_parsed_with_any_chunk_sizes(images, column, sizes):
    body, header = written(images, column=column)
    uploads, error, _ = read(body, header, sizes=sizes)
    assert error is None
    assert [upload.data for upload in uploads] == images
    assert [upload.index for upload in uploads] == list(range(len(images)))


@given(pictures, st.booleans(), st.booleans(), st.sampled_from([None, 2]), chunk_sizes)
def test_base64_in_json_is_parsed_with_any_chunk_sizes(images, column, nested, indent, sizes):
    data = [base64.b64encode(image).decode() for image in images]
    body = asking([[each] for each in data] if nested else data, shape=[len(data), 1] if column else [len(data)])
    uploads, error, _ = read(json.dumps(body, indent=indent).encode(), sizes=sizes)
    assert error is None
    assert [upload.data for upload in uploads] == images


@given(pictures, st.data())
def test_truncated_or_overlong_body_is_refused(images, data):
    body, header = written(images)
    cut = data.draw(st.integers(0, len(body) - 1))
    assert isinstance(refusal(body[:cut], header), InvalidBody)
    assert isinstance(refusal(body + b"x", header), InvalidBody)


@given(pictures, st.integers(0, 10_000), st.integers(0, 255), st.integers(0, 400))
def test_damaged_body_is_parsed_or_refused(images, place, byte, header):
    body, right = written(images)
    damaged = bytearray(body)
    damaged[place % len(body)] = byte
    for length in (right, header, None):
        _, error, _ = read(bytes(damaged), length)
        assert error is None or isinstance(error, RequestError)


@pytest.mark.parametrize("first", [True, False])
def test_members_may_come_in_any_order(first):
    body = asking()
    rest = {"id": "7", "parameters": {"timeout": 5, "unknown": [1]}, "outputs": [{"name": "STATUS"}], "more": 1}
    uploads, error, reader = read({**rest, **body} if first else {**body, **rest})
    assert (len(uploads), error) == (1, None)
    members = {"id": "7", "parameters": {"timeout": 5}, "outputs": [{"name": "STATUS"}]}
    assert reader.request == InferenceRequest.model_validate(members)


async def test_image_is_yielded_once_complete():
    body, header = written([b"first", b"second"])

    async def stop_after_the_first():
        yield body[: header + 4 + 5]
        raise AssertionError("the first image was there already")

    reader = InferenceReader(stop_after_the_first(), header, LIMITS)
    assert (await anext(reader.uploads())).data == b"first"
    assert reader.request.parameters.binary_data_output, "what stands in the header is known by then"


@pytest.mark.parametrize(
    ("sent", "error", "words"),
    [
        ({"inputs": []}, InvalidParameter, "IMAGE is missing"),
        ({"inputs": {}}, InvalidBody, "inputs must be an array"),
        ([], InvalidBody, "must be an object"),
        (asking(name="PIXELS"), InvalidParameter, "'name': input should be 'IMAGE', not 'PIXELS'"),
        (asking(name=None), InvalidParameter, "'name'"),
        (asking(datatype="FP32"), InvalidParameter, "'datatype': input should be 'BYTES', not 'FP32'"),
        (asking(shape=[1, 2]), InvalidParameter, "[N] or [N, 1]"),
        (asking(shape=[-1]), InvalidParameter, "'shape'"),
        *((asking(shape=[number]), InvalidParameter, "") for number in OUT_OF_RANGE),
        *((asking(None, parameters={"binary_data_size": number}), InvalidParameter, "") for number in OUT_OF_RANGE),
        (asking(shape=[2]), InvalidParameter, "says 2 images, but data has 1"),
        (asking(data=[5]), InvalidBody, "strings"),
        (asking(data=[[["YQ=="]]]), InvalidBody, "strings"),
        (asking(parameters={"binary_data_size": 9}), InvalidParameter, "data or binary_data_size"),
        (asking(parameters={"shared_memory_region": "r"}), InvalidParameter, "'shared_memory_region'"),
        ({"inputs": [asking()["inputs"][0]] * 2}, InvalidParameter, "one input"),
        ({**asking(), "id": 5}, InvalidParameter, "'id'"),
        ({**asking(), "parameters": {"timeout": 1.5}}, InvalidParameter, "'timeout'"),
        *(({**asking(), "parameters": {"timeout": number}}, InvalidParameter, "'timeout'") for number in OUT_OF_RANGE),
        ({**asking(), "outputs": {}}, InvalidParameter, "'outputs'"),
        ({**asking(), "outputs": [{"name": "SCORES"}]}, InvalidParameter, "'PREDICTION', 'STATUS', 'FEATURES'"),
        ({**asking(), "outputs": [{"name": "STATUS"}] * 2}, InvalidParameter, "twice"),
        (asking_for(classification=-1), InvalidParameter, "'classification'"),
        *((asking_for(classification=number), InvalidParameter, "'classification'") for number in OUT_OF_RANGE),
        (asking_for(classification=1_001), InvalidParameter, "at most 1,000"),
        (asking_for(binary_data=1), InvalidParameter, "'binary_data'"),
        (asking_for(shared_memory_region="r"), InvalidParameter, "'shared_memory_region'"),
        (asking_for("STATUS", classification=2), InvalidParameter, "STATUS has no classes"),
        ({**asking(), "id": "x" * 2_000}, InvalidParameter, "'id'"),
        *(
            (template % number, InvalidBody, "")
            for template in (
                b'{"parameters": {"timeout": %s}}',
                b'{"outputs": [{"parameters": {"classification": %s}}]}',
                b'{"inputs": [{"shape": [%s]}]}',
                b'{"inputs": [{"parameters": {"binary_data_size": %s}}]}',
            )
            for number in (b"1e400", b"NaN", b"Infinity", b"-Infinity")
        ),
        (b'{"id": "\xff"}', InvalidBody, "UTF-8"),
        (binary((9, b"abc")), InvalidBody, "9 bytes, 6 more than"),
        (binary((3, b"abc"), (3, b"abc"), shape=[1]), InvalidBody, "7 bytes are left after the last of 1 images"),
        (binary((3, b"abc"), shape=[2]), InvalidBody, "end before image 1 of 2"),
        (binary((3, b"abc"), parameters={"binary_data_size": 8}), InvalidBody, "left after the last"),
        (binary((3, b"abc"), parameters={"binary_data_size": 6}), InvalidBody, "1 more than"),
        (BINARY[0], InvalidBody, "trailing characters"),
        (BINARY[0][: BINARY[1]], InvalidParameter, "needs the HTTP header"),
        ((BINARY[0][:-1], BINARY[1]), InvalidBody, "1 bytes before"),
    ],
)
def test_invalid_request_is_refused_with_a_message(sent, error, words):
    found = refusal(*sent) if isinstance(sent, tuple) else refusal(sent)
    assert type(found) is error
    assert words in found.message


def test_invalid_base64_fails_alone():
    uploads, error, _ = read(asking(["YQ==", "!", "YQ=="]))
    assert error is None
    assert [upload.data for upload in uploads] == [b"a", b"", b"a"]
    assert isinstance(uploads[1].error, InvalidImage)


def test_more_images_than_max_files_are_refused_as_soon_as_they_are_announced():
    body, header = binary((1, b"x"), shape=[3])
    assert isinstance(refusal(body[:header], header, limits(max_files=2)), TooManyFiles)


async def test_images_are_not_buffered_together():
    count, size = 200, 2**18
    body, header = written([b"x" * size])
    head = body[:header].replace(b'"shape":[1]', b'"shape":[%d]' % count)
    head = head.replace(b"%d" % (size + 4), b"%d" % (count * (size + 4)))

    async def endless():
        yield head
        for _ in range(count):
            yield body[header:]

    with allocates_at_most(8 * size):
        uploads = InferenceReader(endless(), len(head), LIMITS).uploads()
        total = sum([len(upload.data) async for upload in uploads])
    assert total == count * size


def test_endless_json_is_refused():
    async def endless():
        yield b'{"id": "'
        for _ in range(1_000):
            yield b"x" * 65_536

    reader = InferenceReader(endless(), None, LIMITS)
    _, error = collect_until_error(reader.uploads(), RequestError)
    assert isinstance(error, RequestTooLarge)
