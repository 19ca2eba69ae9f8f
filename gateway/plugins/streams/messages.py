"""The messages that a stream sends."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic_core import to_json

from gateway.errors import GatewayError
from gateway.inference.backend import SequenceScores
from gateway.inference.result import Prediction, Result, Selection


def predictions_of(
    scores: NDArray[np.float32],
    labels: Sequence[str],
    selection: Selection,
    *,
    multi_label: bool,
    first: int | None = None,
) -> list[dict[str, Any]]:
    """The best classes of scores, fp32 [classes], by descending score, or after the class `first`.

    Raises InvalidParameter for unknown labels.
    """
    count = selection.class_count(multi_label=multi_label)
    best = np.argsort(-scores, kind="stable").tolist()
    if first is not None:
        best.remove(first)
        best.insert(0, first)
    named = len(labels) == len(scores)
    predictions = [
        Prediction(labels[class_id] if named else str(class_id), class_id, float(scores[class_id]))
        for class_id in best[:count]
    ]
    return [
        {"label": each.label, "class_id": each.class_id, "score": round(each.score, 6)}
        for each in selection.apply(predictions, multi_label=multi_label)
    ]


class HeldLabel:
    """The first class of a sequence, which another class replaces only by a margin."""

    def __init__(self) -> None:
        self._class_id: int | None = None

    def predictions(
        self,
        scores: NDArray[np.float32],
        labels: Sequence[str],
        selection: Selection,
        margin: float,
        *,
        multi_label: bool,
    ) -> list[dict[str, Any]]:
        """The best classes of the sequence's scores, fp32 [classes], after the held one; as `predictions_of`."""
        best, held = predictions_of(scores, labels, selection, multi_label=multi_label), self._class_id
        if best and held is not None and held < len(scores) and scores[best[0]["class_id"]] - scores[held] < margin:
            best = predictions_of(scores, labels, selection, multi_label=multi_label, first=held)
        self._class_id = best[0]["class_id"] if best else None
        return best


def frame_message(
    number: int,
    result: Result,
    *,
    predictions: list[dict[str, Any]],
    sequence: dict[str, Any] | None,
    dropped: int,
    latency_seconds: float,
) -> bytes:
    """The result of one frame; `dropped` is the number of frames dropped since the previous result."""
    warning = {"warning": "damaged"} if result.row.damaged else {}
    return to_json(
        {
            "type": "frame",
            "frame": number,
            "status": "ok" if result.error is None else "error",
            "width": result.width,
            "height": result.height,
            "predictions": predictions,
            "sequence": sequence,
            "error": fault(result.error),
            **warning,
            "version": result.row.model_version or None,
            "dropped": dropped,
            "latency_ms": round(latency_seconds * 1e3, 1),
        },
        inf_nan_mode="null",
    )


def sequence_member(
    state: SequenceScores | None, predictions: list[dict[str, Any]], error: GatewayError | None
) -> dict[str, Any]:
    """The result of the sequence so far, or the error."""
    return {
        "frames": state.frames if state else 0,
        "restarted": bool(state and state.restarted),
        "predictions": predictions,
        "error": fault(error),
    }


def fault(error: GatewayError | None) -> dict[str, str] | None:
    """The code and the public message of an error."""
    return None if error is None else {"code": error.code, "message": error.message}


def error_message(error: GatewayError) -> bytes:
    """The message with an error on an open WebSocket."""
    return to_json({"type": "error", "error": fault(error)})
