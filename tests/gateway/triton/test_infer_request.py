"""The hand-encoded request equals the one that protobuf encodes."""

import struct
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import InferInput, InferRequestedOutput
from tritonclient.grpc._utils import _get_inference_request
from tritonclient.grpc.service_pb2 import ModelInferRequest

from gateway.deadline import Deadline
from gateway.inference.backend import Batch, Call
from gateway.inference.selection import Selection
from gateway.ingest.padding import pad
from gateway.triton.contract import FEATURES, IMAGE_STATUS, PREDICTION, RAW_IMAGE, RAW_IMAGE_LENGTH
from gateway.triton.messages import infer_request
from gateway.triton.seal import SEAL_BYTES, Seal

TENSORS = {RAW_IMAGE: "UINT8", RAW_IMAGE_LENGTH: "INT32"}


def parsed(
    batch: Batch, version: str = "", class_count: int | None = 5, *, embeddings: bool = False
) -> ModelInferRequest:
    call = Call(batch, "flowers", version, Selection(), Deadline.after(1), "an id")
    return ModelInferRequest.FromString(infer_request(call, class_count, 1.5, embeddings=embeddings))


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
    assert parsed(Batch(images), version, class_count) == theirs


@given(st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=9))
def test_seal_is_at_the_end_of_its_row(images):
    batch = Batch(images)
    codes = Seal(b"secret of a test").apply(batch)
    request = parsed(batch)

    rows = np.frombuffer(request.raw_input_contents[0], np.uint8).reshape(request.inputs[0].shape)
    assert rows.shape[1] == max(map(len, images)) + SEAL_BYTES
    assert [row[-SEAL_BYTES:].tobytes() for row in rows] == list(codes)
    for row, image in zip(rows, images, strict=True):
        assert row[: len(image)].tobytes() == image
        assert not row[len(image) : -SEAL_BYTES].any()
    assert struct.unpack(f"<{len(images)}i", request.raw_input_contents[1]) == tuple(map(len, images))


def test_large_image_is_sent_with_its_length():
    assert len(parsed(Batch([bytes(5_000_000)])).raw_input_contents[0]) == 5_000_000


def test_other_outputs_have_another_cache_key():
    """Triton's cache ignores which outputs are requested: with another seal it cannot find the other answer."""
    batch = Batch([b"one", b"another"])
    codes = list(Seal(b"secret of a test").apply(batch))
    classes, both = (parsed(batch, embeddings=embeddings) for embeddings in (False, True))
    assert [output.name for output in classes.outputs] == [PREDICTION, IMAGE_STATUS]
    assert [output.name for output in both.outputs] == [PREDICTION, IMAGE_STATUS, FEATURES]
    rows = [
        np.frombuffer(request.raw_input_contents[0], np.uint8).reshape(request.inputs[0].shape)
        for request in (classes, both)
    ]
    for one, other in zip(*rows, strict=True):
        assert (one[:-SEAL_BYTES] == other[:-SEAL_BYTES]).all()
        assert (one[-SEAL_BYTES:] != other[-SEAL_BYTES:]).any()
    # The codes that identify the images, for example in the quarantine, are the same.
    assert list(batch.seals) == codes
