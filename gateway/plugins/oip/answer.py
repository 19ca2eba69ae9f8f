"""Encodes results as responses of the Open Inference Protocol; the counterpart of gateway.plugins.oip.reader."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic_core import to_json

from gateway.errors import InvalidParameter, ModelUnavailable, no_features
from gateway.inference.backend import SequenceScores
from gateway.inference.result import Result, Row
from gateway.plugins.oip.documents import FEATURES, SEQUENCE_FRAMES, SEQUENCE_PREDICTION, STATUS
from gateway.plugins.oip.members import ALL_OUTPUTS, InferenceRequest, Output
from gateway.plugins.oip.reader import LENGTH_BYTES
from gateway.timing import TimeSlice

OK = "ok"
Values = NDArray[np.float32] | NDArray[np.int32] | list[str]


@dataclass(frozen=True, slots=True)
class Scored:
    """The results of one request: scores, fp32 [N, classes], NaN for failed images, and the status of each image.

    `embeddings`, fp32 [N, size], are the embeddings, if the model has them; `sequence` has the scores of the sequence
    after each image, None for failed images, if the request continues one.
    """

    scores: NDArray[np.float32]
    statuses: list[str]
    model_version: str
    embeddings: NDArray[np.float32] | None = None
    sequence: Sequence[SequenceScores | None] | None = None

    @classmethod
    def of(cls, results: Sequence[Result]) -> "Scored":
        """Combine results, of which at least one has scores.

        The version of the first result determines the classes: if a version with other classes replaced it during the
        request, the later images fail.
        """
        rows = [result.row for result in results]
        first = next(row for row in rows if row.scores is not None)
        assert first.scores is not None
        statuses = []
        for row in rows:
            status = OK if _shapes(row) == _shapes(first) else ModelUnavailable.code
            statuses.append(status if row.error is None else row.error.code)
        answered = [row if status == OK else None for row, status in zip(rows, statuses, strict=True)]
        scores = _rows([each.scores if each else None for each in answered], len(first.scores))
        embeddings = None
        if first.embedding is not None:
            embeddings = _rows([each.embedding if each else None for each in answered], len(first.embedding))
        return cls(scores, statuses, first.model_version, embeddings)


def _shapes(row: Row) -> list[tuple[int, ...]]:
    return [() if vector is None else vector.shape for vector in (row.scores, row.embedding)]


def _rows(vectors: Sequence[NDArray[np.float32] | None], size: int) -> NDArray[np.float32]:
    """Vectors of this size as fp32 [N, size]; NaN for None."""
    table = np.full((len(vectors), size), np.nan, np.float32)
    for row, vector in zip(table, vectors, strict=True):
        if vector is not None:
            row[:] = vector
    return table


async def encode(
    request: InferenceRequest, model_name: str, scored: Scored, labels: Sequence[str]
) -> tuple[list[bytes], int | None]:
    """Encode the requested outputs; `labels` are the classes' labels, by class id.

    Returns the pieces of the body, and how many bytes of JSON precede binary tensors; None if all of it is JSON.

    Raises NoFeatures if FEATURES is requested by name from a model without embeddings, and InvalidParameter if an
    output of a sequence is requested by name without one.
    """
    head: dict[str, Any] = {"model_name": model_name, "model_version": scored.model_version}
    if request.id is not None:
        head["id"] = request.id
    time_slice = TimeSlice()
    header, tail = [to_json(head)[:-1], b',"outputs":['], []
    for number, output in enumerate(_available_outputs(request, model_name, scored)):
        tensor, rows = _tensor(output, scored, labels)
        pieces, binary = [], request.is_binary(output)
        for row in rows:
            pieces.append(_binary(row) if binary else _json(row))
            await time_slice.pause_if_over()
        if binary:
            tensor["parameters"] = {"binary_data_size": sum(map(len, pieces))}
            tail += pieces
        header += [b"," if number else b"", to_json(tensor)[:-1]]
        if not binary:
            header += [b',"data":[', b",".join(pieces), b"]"]
        header.append(b"}")
    header.append(b"]}")
    return [*header, *tail], sum(map(len, header)) if tail else None


def _available_outputs(request: InferenceRequest, model_name: str, scored: Scored) -> Sequence[Output]:
    """The outputs of the response; raises NoFeatures and InvalidParameter."""
    missing = set()
    if scored.embeddings is None:
        missing.add(FEATURES)
    if scored.sequence is None:
        missing |= {SEQUENCE_PREDICTION, SEQUENCE_FRAMES}
    for output in request.outputs:
        if output.name in missing:
            if output.name == FEATURES:
                raise no_features(model_name)
            raise InvalidParameter(f"'outputs': {output.name} needs the parameter 'sequence_id'.")
    return request.outputs or [output for output in ALL_OUTPUTS if output.name not in missing]


def _tensor(output: Output, scored: Scored, labels: Sequence[str]) -> tuple[dict[str, Any], Iterable[Values]]:
    """A tensor without its data, and its data in rows: fp32 [classes], strings, or int32 [N] for frame numbers."""
    count, classes = scored.scores.shape
    states = scored.sequence or ()
    if output.name == STATUS:
        return {"name": STATUS, "datatype": "BYTES", "shape": [count]}, [scored.statuses]
    if output.name == FEATURES:
        assert scored.embeddings is not None
        return {"name": FEATURES, "datatype": "FP32", "shape": list(scored.embeddings.shape)}, scored.embeddings
    if output.name == SEQUENCE_FRAMES:
        frames = np.array([state.frames if state else 0 for state in states], np.int32)
        return {"name": SEQUENCE_FRAMES, "datatype": "INT32", "shape": [count]}, [frames]
    scores = scored.scores
    if output.name == SEQUENCE_PREDICTION:
        scores = _rows([state.scores if state else None for state in states], classes)
    if not output.class_count:
        return {"name": output.name, "datatype": "FP32", "shape": [count, classes]}, scores
    most = min(output.class_count, classes)
    texts = (
        _best(row, most, labels) if status == OK else [""] * most
        for row, status in zip(scores, scored.statuses, strict=True)
    )
    return {"name": output.name, "datatype": "BYTES", "shape": [count, most]}, texts


def _best(scores: NDArray[np.float32], class_count: int, labels: Sequence[str]) -> list[str]:
    """Triton's classification: "score:class id:label" by descending score."""
    order = np.argsort(-scores, kind="stable")[:class_count].tolist()
    return [f"{scores[each]:f}:{each}:{labels[each] if each < len(labels) else each}" for each in order]


def _json(row: Values) -> bytes:
    """Encode the elements of a row as JSON, separated by commas; NaN becomes null."""
    values = row if isinstance(row, list) else row.tolist()
    return to_json(values, inf_nan_mode="null")[1:-1]


def _binary(row: Values) -> bytes:
    """Encode a row as binary data: row-major, little-endian; a string is its length in bytes, uint32, and its UTF-8."""
    if not isinstance(row, list):
        return row.astype(row.dtype.newbyteorder("<"), copy=False).tobytes()
    texts = (text.encode() for text in row)
    return b"".join(part for text in texts for part in (len(text).to_bytes(LENGTH_BYTES, "little"), text))
