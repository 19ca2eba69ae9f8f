"""Requests and responses of Triton: their encoding, their signature, and their errors."""

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import InferInput, InferRequestedOutput
from tritonclient.grpc._utils import _get_inference_request
from tritonclient.grpc.service_pb2 import ModelInferRequest, ModelInferResponse
from tritonclient.utils import InferenceServerException

from gateway.errors import (
    DeadlineExceeded,
    GatewayError,
    InferenceFailed,
    ModelNotFound,
    ModelUnavailable,
    Overloaded,
    TritonUnreachable,
)
from gateway.inference.backend import Call
from gateway.inference.result import Prediction, Row, Selection
from gateway.timing import Deadline
from gateway.triton.client import StubDied, translate
from gateway.triton.contract import DAMAGED, FEATURES, IMAGE_STATUS, PREDICTION, RAW_IMAGE, RAW_IMAGE_LENGTH
from gateway.triton.wire import CONTRACT, SIGNATURE_BYTES, ImageCodec, Signer
from gateway_models.blocking_triton import pad


def answer_of(*rows: Sequence[bytes]) -> ModelInferResponse:
    """Triton's answer with classes for each image, all decoded."""
    response = ModelInferResponse(model_name="m", model_version="1")
    response.outputs.add(name=PREDICTION, datatype="BYTES", shape=[len(rows), len(rows[0])])
    response.outputs.add(name=IMAGE_STATUS, datatype="INT32", shape=[len(rows), 1])
    texts = (len(text).to_bytes(4, "little") + text for row in rows for text in row)
    response.raw_output_contents.extend([b"".join(texts), np.zeros(len(rows), np.int32).tobytes()])
    return response


async def read(*rows: Sequence[bytes]) -> Sequence[Row]:
    return await CONTRACT.read(answer_of(*rows), rows=len(rows), class_count=5)


async def test_classes_are_read_with_any_label():
    rows = await read([b"0.750000:1:a: b", b"0.250000:0"], [b"0.500000:0:\xff", b"0.400000:12:\xc3\xa9t\xc3\xa9"])
    assert [list(row.predictions) for row in rows] == [
        [Prediction("a: b", 1, 0.75), Prediction("0", 0, 0.25)],
        [Prediction("\ufffd", 0, 0.5), Prediction("\xe9t\xe9", 12, 0.4)],
    ]


async def test_each_row_has_the_status_of_its_image():
    answer = answer_of(*[[b"0.7:1:cat"]] * 3)
    answer.raw_output_contents[1] = struct.pack("<3i", 0, DAMAGED, 3)
    rows = await CONTRACT.read(answer, rows=3, class_count=5)
    found = [(row.error is None, row.damaged, len(row.predictions)) for row in rows]
    assert found == [(True, False, 1), (True, True, 1), (False, False, 0)]


@pytest.mark.parametrize("text", [b"", b"0.5", b"x:1:cat", b"0.5:x:cat", b"0.5:99999999999999999999:cat"])
async def test_malformed_class_is_an_inference_error(text):
    with pytest.raises(InferenceFailed):
        await read([text])


@pytest.mark.parametrize(("datatype", "shape"), [("FP16", [1, 3]), ("FP32", [3]), ("FP32", [2, 3]), ("", [])])
async def test_response_without_requested_embeddings_is_an_error(datatype, shape):
    response = answer_of([b"0.7:1:cat"])
    if datatype:
        response.outputs.add(name=FEATURES, datatype=datatype, shape=shape)
        response.raw_output_contents.append(bytes(4 * int(np.prod(shape))))
    with pytest.raises(InferenceFailed):
        await CONTRACT.read(response, rows=1, class_count=5, embeddings=True)


TENSORS = {RAW_IMAGE: "UINT8", RAW_IMAGE_LENGTH: "INT32"}


def parsed(
    images: Sequence[bytes],
    signatures: Sequence[bytes] = (),
    version: str = "",
    class_count: int | None = 5,
    *,
    embeddings: bool = False,
) -> ModelInferRequest:
    call = Call(images, "flowers", version, Selection(), Deadline.after(1), "an id", signatures)
    return ModelInferRequest.FromString(CONTRACT.request(call, class_count, 1.5, embeddings=embeddings))


def rows_of(request: ModelInferRequest) -> np.ndarray:
    """The padded images of a request."""
    return np.frombuffer(request.raw_input_contents[0], np.uint8).reshape(request.inputs[0].shape)


@given(
    st.lists(st.binary(max_size=300), min_size=1, max_size=9),
    st.sampled_from(["", "1", "12"]),
    st.none() | st.integers(1, 2**31 - 1),
)
def test_request_equals_that_of_the_triton_client(images, version, class_count):
    tensors: Any = zip(TENSORS.items(), pad(images), strict=True)
    theirs = _get_inference_request(
        model_name="flowers",
        inputs=[InferInput(name, array.shape, kind).set_data_from_numpy(array) for (name, kind), array in tensors],
        model_version=version,
        request_id="an id",
        outputs=[InferRequestedOutput(PREDICTION, class_count=class_count or 0), InferRequestedOutput(IMAGE_STATUS)],
        sequence_id=0,
        sequence_start=False,
        sequence_end=False,
        priority=0,
        timeout=1_500_000,
        parameters=None,
    )
    assert parsed(images, (), version, class_count) == theirs


@given(st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=9))
def test_signature_is_at_the_end_of_its_row(images):
    codes = [Signer(b"secret of a test").sign(image) for image in images]
    request = parsed(images, codes)

    rows = rows_of(request)
    assert rows.shape[1] == max(map(len, images)) + SIGNATURE_BYTES
    assert [row[-SIGNATURE_BYTES:].tobytes() for row in rows] == codes
    for row, image in zip(rows, images, strict=True):
        assert row[: len(image)].tobytes() == image
        assert not row[len(image) : -SIGNATURE_BYTES].any()
    assert struct.unpack(f"<{len(images)}i", request.raw_input_contents[1]) == tuple(map(len, images))


@pytest.mark.parametrize("signed", [False, True])
def test_ensemble_with_images_alone_gets_padded_rows(signed):
    """The signature is sent only where a response cache may answer: without lengths the preprocessor sees it, too."""
    images = [b"one", b"another"]
    codes = [Signer(b"secret of a test").sign(image) for image in images]
    codec = ImageCodec("SCORES", has_lengths=False, reports_images=False, is_signed=signed)
    call = Call(images, "flowers", "", Selection(), Deadline.after(1), "an id", codes)
    request = ModelInferRequest.FromString(codec.request(call, None, 1.0))
    assert [tensor.name for tensor in request.inputs] == [RAW_IMAGE]
    assert [tensor.name for tensor in request.outputs] == ["SCORES"]
    first, second = codes if signed else (b"", b"")
    assert request.raw_input_contents == [b"one" + bytes(4) + first + b"another" + second]


def test_other_outputs_have_another_cache_key():
    """Triton's cache ignores which outputs are requested: with another signature it cannot find the other answer."""
    images = [b"one", b"another"]
    codes = [Signer(b"secret of a test").sign(image) for image in images]
    classes, both = (parsed(images, codes, embeddings=embeddings) for embeddings in (False, True))
    assert [output.name for output in classes.outputs] == [PREDICTION, IMAGE_STATUS]
    assert [output.name for output in both.outputs] == [PREDICTION, IMAGE_STATUS, FEATURES]
    for one, other in zip(rows_of(classes), rows_of(both), strict=True):
        assert (one[:-SIGNATURE_BYTES] == other[:-SIGNATURE_BYTES]).all()
        assert (one[-SIGNATURE_BYTES:] != other[-SIGNATURE_BYTES:]).any()


def signed(*payloads: bytes, secret: bytes = b"secret of a test") -> list[bytes]:
    return [Signer(secret).sign(each) for each in payloads]


def test_codes_depend_on_the_image_and_the_secret():
    codes = signed(b"one", b"another one")
    assert codes == signed(b"one", b"another one")
    assert len({*codes, *signed(b"one", secret=b"another secret..")}) == 3
    assert {len(code) for code in codes} == {SIGNATURE_BYTES}


@pytest.mark.parametrize(
    ("status", "words", "meaning"),
    [
        ("StatusCode.UNAVAILABLE", "failed to connect to all addresses", TritonUnreachable),
        ("StatusCode.UNAVAILABLE", "Exceeds maximum queue size", Overloaded),
        ("StatusCode.UNAVAILABLE", "Request timeout expired", DeadlineExceeded),
        ("StatusCode.NOT_FOUND", "Request for unknown model: 'x' is not found", ModelNotFound),
        ("StatusCode.NOT_FOUND", "Request for unknown model: 'x' has no available versions", ModelUnavailable),
    ],
)
def test_known_text_takes_precedence_over_the_status(status: str, words: str, meaning: type[GatewayError]):
    assert type(translate(InferenceServerException(words, status=status))) is meaning


def test_dead_process_error_names_its_model():
    words = "in ensemble 'ensemble_model', Stub process 'my_model_2_0_1' is not healthy."
    error = translate(InferenceServerException(words, status="StatusCode.INTERNAL"))
    assert isinstance(error, StubDied)
    assert error.step == "my_model_2"
    assert error.code == "model_unavailable"


def test_public_message_contains_no_text_of_triton():
    error = translate(InferenceServerException("/srv/secret/path broke", status="StatusCode.INTERNAL"))
    assert "secret" not in error.message
