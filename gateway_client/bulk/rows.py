"""A row of the output: the result for one image."""

from collections.abc import Iterable
from typing import Any

from gateway_client import Prediction, Result

Row = dict[str, Any]
COLUMNS = (
    "path",
    "status",
    "label",
    "class_id",
    "score",
    "predictions",
    "width",
    "height",
    "model",
    "version",
    "error",
    "message",
    "warning",
)
"""`label`, `class_id` and `score` are those of the best class; `error` is a code, `message` its description."""
EMBEDDING = "embedding"
"""Additional column of a run with `--embeddings`: the embedding as a list of numbers."""


def columns(*, embeddings: bool) -> tuple[str, ...]:
    """The columns of a run."""
    return (*COLUMNS, EMBEDDING) if embeddings else COLUMNS


def printable(name: str) -> str:
    r"""Make a file name valid UTF-8: an invalid byte such as E9 becomes the text \udce9.

    Python represents such a byte as a lone surrogate, which would make the whole output unreadable to strict readers.
    """
    return name.encode(errors="backslashreplace").decode()


def row_of(result: Result, *, embeddings: bool = False) -> Row:
    """Convert a result to a row with the members `columns`, and `frames` if it has any."""
    best, error = result.best, result.error
    embedding = {EMBEDDING: result.embedding and result.embedding.tolist()} if embeddings else {}
    row = {
        "path": printable(result.name),
        "status": "ok" if error is None else "error",
        "label": best and best.label,
        "class_id": best and best.class_id,
        "score": best and best.score,
        "predictions": _prediction_objects(result.predictions),
        "width": result.width,
        "height": result.height,
        "model": result.model,
        "version": result.version,
        "error": error and error.code,
        "message": error and error.message,
        "warning": result.warning,
        **embedding,
    }
    if result.frames:
        row["frames"] = [
            {
                "index": frame.index,
                "time_s": frame.seconds,
                "predictions": _prediction_objects(frame.predictions),
                "error": frame.error and frame.error.code,
            }
            for frame in result.frames
        ]
    return row


def _prediction_objects(predictions: Iterable[Prediction]) -> list[dict[str, Any]]:
    return [{"label": each.label, "class_id": each.class_id, "score": each.score} for each in predictions]
