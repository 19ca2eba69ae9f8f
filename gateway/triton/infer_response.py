"""Reads Triton's responses; labels that images share are stored once."""

import struct
from array import array
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc.service_pb2 import ModelInferResponse

from gateway.errors import InferenceFailed
from gateway.inference.backend import InferResult, Row
from gateway.inference.prediction import Predictions
from gateway.time_slices import TimeSlice
from gateway.triton.contract import FEATURES, IMAGE_STATUS, PREDICTION

CLASSES_AT_ONCE = 500
"""Classes read between two checks of the time slice."""
MOST_LABELS = 100_000
"""Upper bound of stored labels, after which the store is cleared: labels of removed models are released."""


class Labels:
    """Decoded labels, each stored once per process."""

    def __init__(self, most: int = MOST_LABELS) -> None:
        self._most = most
        self._texts: dict[bytes, str] = {}

    def text(self, raw: bytes) -> str:
        """A label in UTF-8 as text."""
        text = self._texts.get(raw)
        if text is None:
            if len(self._texts) >= self._most:
                self._texts.clear()
            text = self._texts[raw] = raw.decode("utf-8", "replace")
        return text


_LABELS = Labels()


async def read_answer(
    response: ModelInferResponse, *, rows: int, classified: bool, vectors: bool = False
) -> InferResult:
    """Read IMAGE_STATUS, INT32 [N, 1], 0 for ok, PREDICTION, and with `vectors` FEATURES, FP32 [N, size].

    PREDICTION is FP32 [N, classes], or if `classified` BYTES [N, k] of "score:class id:label".
    """
    outputs = {
        output.name: (output.datatype, list(output.shape), raw)
        for output, raw in zip(response.outputs, response.raw_output_contents, strict=False)
    }
    nothing: tuple[str, list[int], bytes] = ("", [], b"")
    datatype, shape, raw = outputs.get(PREDICTION, nothing)
    status_type, status_shape, statuses = outputs.get(IMAGE_STATUS, nothing)
    if (datatype, shape[:1], len(shape)) != ("BYTES" if classified else "FP32", [rows], 2) or (
        (status_type, status_shape) != ("INT32", [rows, 1])
    ):
        raise InferenceFailed from ValueError("the response lacks PREDICTION or IMAGE_STATUS, or its rows differ")
    try:
        codes = struct.unpack(f"<{rows}i", statuses)
        if classified:
            answers = await _classes(raw, rows, shape[1])
        else:
            answers = [Row(decoded=True, scores=scores) for scores in np.frombuffer(raw, np.float32).reshape(shape)]
        if vectors:
            embeddings = _vectors(*outputs.get(FEATURES, nothing), rows)
            answers = [replace(row, vector=vector) for row, vector in zip(answers, embeddings, strict=True)]
    except (ValueError, OverflowError, struct.error) as exc:
        raise InferenceFailed from exc
    return InferResult(
        model_name=response.model_name,
        model_version=response.model_version,
        rows=tuple(row if code == 0 else Row(decoded=False) for code, row in zip(codes, answers, strict=True)),
    )


def _vectors(datatype: str, shape: list[int], raw: bytes, rows: int) -> NDArray[np.float32]:
    """FEATURES of a response; raises ValueError."""
    if (datatype, shape[:1], len(shape)) != ("FP32", [rows], 2):
        raise ValueError("the response lacks FEATURES, or its rows differ")
    return np.frombuffer(raw, np.float32).reshape(shape)


async def _classes(raw: bytes, rows: int, class_count: int) -> list[Row]:
    """Read BYTES [N, k], each text preceded by its length, uint32 little-endian.

    A batch of 8 from a model with 21,000 classes has 168,000 texts, so it pauses after each time slice.
    """
    time_slice = TimeSlice()
    answers, position = [], 0
    for _ in range(rows):
        labels, class_ids, scores = [], array("i"), array("d")
        for number in range(class_count):
            begin = position + 4
            position = begin + int.from_bytes(raw[position:begin], "little")
            # "score:class id:label"; the label may hold colons or be absent
            score, _, rest = raw[begin:position].partition(b":")
            class_id, _, label = rest.partition(b":")
            scores.append(float(score))
            class_ids.append(int(class_id))
            labels.append(_LABELS.text(label or class_id))
            if number % CLASSES_AT_ONCE == 0:
                await time_slice.pause_if_over()
        answers.append(Row(decoded=True, predictions=Predictions(tuple(labels), class_ids, scores)))
    return answers
