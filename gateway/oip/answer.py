"""Answers of the Open Inference Protocol out of results: pure, the encoding of gateway.oip.reader the other way."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic_core import to_json

from gateway.errors import ModelUnavailable
from gateway.inference.query import Result
from gateway.oip.reader import LENGTH_BYTES
from gateway.oip.request import PREDICTION, STATUS, InferenceRequest, RequestedOutput

OK = "ok"


@dataclass(frozen=True, slots=True)
class Answer:
    """A body; `header_bytes` of it are JSON, and tensors as binary data follow. None where all of it is JSON."""

    body: bytes
    header_bytes: int | None


@dataclass(frozen=True, slots=True)
class Scored:
    """The results of one request: fp32 [N, classes], NaN for images without an answer, and a status for each."""

    scores: NDArray[np.float32]
    statuses: list[str]
    model_version: str

    @classmethod
    def of(cls, results: Sequence[Result]) -> "Scored":
        """Put results together, of which at least one has scores.

        The first answer's version gives the classes: where another one with other classes has taken its place in the
        middle of the request, the images after it have no answer.
        """
        first = next(result for result in results if result.scores is not None)
        assert first.scores is not None
        scores = np.full((len(results), len(first.scores)), np.nan, np.float32)
        statuses = []
        for row, result in zip(scores, results, strict=True):
            if result.error is not None:
                statuses.append(result.error.code)
            elif result.scores is None or len(result.scores) != len(row):
                statuses.append(ModelUnavailable.code)
            else:
                row[:] = result.scores
                statuses.append(OK)
        return cls(scores, statuses, first.model_version or "")

    def best(self, class_count: int, labels: Sequence[str]) -> list[list[str]]:
        """Triton's classification, [N, k] of "score:class id:label" by falling score; "" without an answer."""
        count = min(class_count, self.scores.shape[1])
        order = np.argsort(-self.scores, axis=1, kind="stable")[:, :count]
        return [
            [f"{row[index]:f}:{index}:{_label(labels, index)}" for index in best.tolist()]
            if status == OK
            else [""] * count
            for row, best, status in zip(self.scores, order, self.statuses, strict=True)
        ]


def encode(request: InferenceRequest, model_name: str, scored: Scored, labels: Sequence[str]) -> Answer:
    """The answer with the outputs that were asked for; `labels` are those of the classes, by class id."""
    head: dict[str, Any] = {"model_name": model_name, "model_version": scored.model_version}
    if request.id is not None:
        head["id"] = request.id
    tensors, tail = [], []
    for output in request.outputs:
        tensor, values = _tensor(output, scored, labels)
        if output.binary:
            data = _binary(values)
            tensor["parameters"] = {"binary_data_size": len(data)}
            tail.append(data)
        else:
            tensor["data"] = values.ravel().tolist()
        tensors.append(tensor)
    header = to_json({**head, "outputs": tensors}, inf_nan_mode="null")
    return Answer(b"".join((header, *tail)), len(header) if tail else None)


def _tensor(
    output: RequestedOutput, scored: Scored, labels: Sequence[str]
) -> tuple[dict[str, Any], NDArray[np.float32] | NDArray[np.object_]]:
    """A tensor without its data, and its data: fp32 or str."""
    values: NDArray[np.float32] | NDArray[np.object_]
    if output.name == STATUS:
        values = np.array(scored.statuses, dtype=np.object_)
    elif output.class_count:
        values = np.array(scored.best(output.class_count, labels), dtype=np.object_)
    else:
        assert output.name == PREDICTION
        values = scored.scores
    datatype = "FP32" if values.dtype == np.float32 else "BYTES"
    return {"name": output.name, "datatype": datatype, "shape": list(values.shape)}, values


def _binary(values: NDArray[np.float32] | NDArray[np.object_]) -> bytes:
    """Row-major and little-endian; text as its length in bytes, uint32, and its UTF-8."""
    if values.dtype == np.float32:
        return values.astype("<f4").tobytes()
    texts = (str(text).encode() for text in values.ravel())
    return b"".join(part for text in texts for part in (len(text).to_bytes(LENGTH_BYTES, "little"), text))


def _label(labels: Sequence[str], class_id: int) -> str:
    return labels[class_id] if class_id < len(labels) else str(class_id)
