"""Encodes results as responses of the Open Inference Protocol; the counterpart of gateway.oip.reader."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic_core import to_json

from gateway.errors import ModelUnavailable, no_features
from gateway.inference.request_spec import Result
from gateway.oip.documents import FEATURES, PREDICTION, STATUS
from gateway.oip.members import InferenceRequest, RequestedOutput
from gateway.oip.reader import LENGTH_BYTES
from gateway.time_slices import TimeSlice

OK = "ok"


@dataclass(frozen=True, slots=True)
class InferResponse:
    """A response body in pieces: `header_bytes` of JSON, then binary tensors. None: all of it is JSON."""

    pieces: list[bytes]
    header_bytes: int | None


@dataclass(frozen=True, slots=True)
class Scored:
    """The results of one request: scores, fp32 [N, classes], NaN for failed images, and the status of each image.

    `embeddings`, fp32 [N, size], are the embeddings, if the model has them.
    """

    scores: NDArray[np.float32]
    statuses: list[str]
    model_version: str
    embeddings: NDArray[np.float32] | None = None

    @classmethod
    def of(cls, results: Sequence[Result]) -> "Scored":
        """Combine results, of which at least one has scores.

        The version of the first result determines the classes: if a version with other classes replaced it during the
        request, the later images fail.
        """
        first = next(result for result in results if result.scores is not None)
        assert first.scores is not None
        scores = np.full((len(results), len(first.scores)), np.nan, np.float32)
        embeddings = (
            None if first.embedding is None else np.full((len(results), len(first.embedding)), np.nan, np.float32)
        )
        statuses = []
        for number, (row, result) in enumerate(zip(scores, results, strict=True)):
            if result.error is not None:
                statuses.append(result.error.code)
            elif result.scores is None or np.shape(result.scores) != row.shape or not _fits(result, embeddings):
                statuses.append(ModelUnavailable.code)
            else:
                row[:] = result.scores
                if embeddings is not None:
                    embeddings[number] = result.embedding
                statuses.append(OK)
        return cls(scores, statuses, first.model_version or "", embeddings)

    def best(self, row: int, class_count: int, labels: Sequence[str]) -> list[str]:
        """Triton's classification of one image: "score:class id:label" by descending score; "" for a failed image."""
        if self.statuses[row] != OK:
            return [""] * class_count
        scores = self.scores[row]
        order = np.argsort(-scores, kind="stable")[:class_count].tolist()
        return [f"{scores[index]:f}:{index}:{_label(labels, index)}" for index in order]


async def encode(request: InferenceRequest, model_name: str, scored: Scored, labels: Sequence[str]) -> InferResponse:
    """Encode the requested outputs; `labels` are those of the classes, by class id.

    Raises NoFeatures if FEATURES is requested by name from a model without embeddings.
    """
    head: dict[str, Any] = {"model_name": model_name, "model_version": scored.model_version}
    if request.id is not None:
        head["id"] = request.id
    time_slice = TimeSlice()
    header, tail = [to_json(head)[:-1], b',"outputs":['], []
    for number, output in enumerate(_available_outputs(request, model_name, scored)):
        tensor, rows = _tensor(output, scored, labels)
        pieces = []
        for row in rows:
            pieces.append(_binary(row) if output.binary else _json(row))
            await time_slice.pause_if_over()
        if output.binary:
            tensor["parameters"] = {"binary_data_size": sum(map(len, pieces))}
            tail += pieces
        header += [b"," if number else b"", to_json(tensor)[:-1]]
        if not output.binary:
            header += [b',"data":[', b",".join(pieces), b"]"]
        header.append(b"}")
    header.append(b"]}")
    return InferResponse([*header, *tail], sum(map(len, header)) if tail else None)


def _available_outputs(request: InferenceRequest, model_name: str, scored: Scored) -> Sequence[RequestedOutput]:
    """The outputs of the response; raises NoFeatures."""
    if scored.embeddings is not None:
        return request.outputs
    available = [output for output in request.outputs if output.name != FEATURES]
    if len(available) < len(request.outputs) and not request.everything:
        raise no_features(model_name)
    return available


def _fits(result: Result, embeddings: NDArray[np.float32] | None) -> bool:
    return embeddings is None or (result.embedding is not None and result.embedding.shape == embeddings.shape[1:])


def _tensor(
    output: RequestedOutput, scored: Scored, labels: Sequence[str]
) -> tuple[dict[str, Any], Iterable[NDArray[np.float32] | list[str]]]:
    """A tensor without its data, and its data in rows, each fp32 [classes] or strings; STATUS is one row."""
    count, classes = scored.scores.shape
    if output.name == STATUS:
        return {"name": STATUS, "datatype": "BYTES", "shape": [count]}, [scored.statuses]
    if output.name == FEATURES:
        assert scored.embeddings is not None
        return {"name": FEATURES, "datatype": "FP32", "shape": list(scored.embeddings.shape)}, scored.embeddings
    assert output.name == PREDICTION
    if output.class_count:
        most = min(output.class_count, classes)
        texts = (scored.best(row, most, labels) for row in range(count))
        return {"name": PREDICTION, "datatype": "BYTES", "shape": [count, most]}, texts
    return {"name": PREDICTION, "datatype": "FP32", "shape": [count, classes]}, scored.scores


def _json(row: NDArray[np.float32] | list[str]) -> bytes:
    """Encode the elements of a row as JSON, separated by commas; NaN becomes null."""
    values = row if isinstance(row, list) else row.tolist()
    return to_json(values, inf_nan_mode="null")[1:-1]


def _binary(row: NDArray[np.float32] | list[str]) -> bytes:
    """Encode a row as binary data: row-major, little-endian; a string is its length in bytes, uint32, and its UTF-8."""
    if not isinstance(row, list):
        return row.astype("<f4").tobytes()
    texts = (text.encode() for text in row)
    return b"".join(part for text in texts for part in (len(text).to_bytes(LENGTH_BYTES, "little"), text))


def _label(labels: Sequence[str], class_id: int) -> str:
    return labels[class_id] if class_id < len(labels) else str(class_id)
