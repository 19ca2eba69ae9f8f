"""Reading Triton's responses."""

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest
from tritonclient.grpc.service_pb2 import ModelInferResponse

from gateway.errors import InferenceFailed
from gateway.inference.backend import InferResult
from gateway.inference.prediction import Prediction
from gateway.triton.contract import FEATURES, IMAGE_STATUS, PREDICTION
from gateway.triton.messages import MOST_LABELS, label_text, read_answer


def answer_of(*rows: Sequence[bytes]) -> ModelInferResponse:
    """Triton's answer with classes for each image, all decoded."""
    response = ModelInferResponse(model_name="m", model_version="1")
    response.outputs.add(name=PREDICTION, datatype="BYTES", shape=[len(rows), len(rows[0])])
    response.outputs.add(name=IMAGE_STATUS, datatype="INT32", shape=[len(rows), 1])
    texts = (len(text).to_bytes(4, "little") + text for row in rows for text in row)
    response.raw_output_contents.extend([b"".join(texts), np.zeros(len(rows), np.int32).tobytes()])
    return response


def read(*rows: Sequence[bytes]) -> InferResult:
    return asyncio.run(read_answer(answer_of(*rows), rows=len(rows), classified=True))


def test_classes_are_read_with_any_label():
    result = read([b"0.750000:1:a: b", b"0.250000:0"], [b"0.500000:0:\xff", b"0.400000:12:\xc3\xa9t\xc3\xa9"])
    assert [list(row.predictions) for row in result.rows] == [
        [Prediction("a: b", 1, 0.75), Prediction("0", 0, 0.25)],
        [Prediction("\ufffd", 0, 0.5), Prediction("\xe9t\xe9", 12, 0.4)],
    ]


def test_images_share_the_texts_of_their_labels():
    one, other = read([b"0.7:1:a label"], [b"0.6:1:a label"]).rows
    assert one.predictions[0].label is other.predictions[0].label


@pytest.mark.parametrize("text", [b"", b"0.5", b"x:1:cat", b"0.5:x:cat", b"0.5:99999999999999999999:cat"])
def test_malformed_class_is_an_inference_error(text):
    with pytest.raises(InferenceFailed):
        read([text])


def test_labels_of_removed_models_are_released():
    assert label_text(b"a label") is label_text(b"a label")
    assert label_text.cache_info().maxsize == MOST_LABELS


async def test_requested_embeddings_are_read():
    response = answer_of([b"0.7:1:cat"], [b"0.6:0:dog"])
    response.outputs.add(name=FEATURES, datatype="FP32", shape=[2, 3])
    response.raw_output_contents.append(np.arange(6, dtype=np.float32).tobytes())
    rows = (await read_answer(response, rows=2, classified=True, embeddings=True)).rows
    assert [row.embedding.tolist() for row in rows] == [[0, 1, 2], [3, 4, 5]]
    assert [row.embedding for row in (await read_answer(response, rows=2, classified=True)).rows] == [None, None]


@pytest.mark.parametrize(("datatype", "shape"), [("FP16", [1, 3]), ("FP32", [3]), ("FP32", [2, 3]), ("", [])])
async def test_response_without_requested_embeddings_is_an_error(datatype, shape):
    response = answer_of([b"0.7:1:cat"])
    if datatype:
        response.outputs.add(name=FEATURES, datatype=datatype, shape=shape)
        response.raw_output_contents.append(bytes(4 * int(np.prod(shape))))
    with pytest.raises(InferenceFailed):
        await read_answer(response, rows=1, classified=True, embeddings=True)
