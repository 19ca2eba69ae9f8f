"""A row of the output: the result for one picture."""

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
)
"""`label`, `class_id` and `score` are the best class's; `error` is a code, `message` says it in words."""
FEATURES = "features"
"""One column more, of a run that asks for vectors: the numbers of each."""


def columns(*, features: bool) -> tuple[str, ...]:
    """Those of a run."""
    return (*COLUMNS, FEATURES) if features else COLUMNS


def printable(name: str) -> str:
    r"""A file's name as UTF-8 can hold it: a byte E9 that is none becomes the text \udce9.

    As a lone surrogate, Python's form of such a byte, it would make the whole output unreadable to strict readers.
    """
    return name.encode(errors="backslashreplace").decode()


def row_of(result: Result, *, features: bool = False) -> Row:
    """A result as a row, whose members are `columns`, and `frames` where it has any."""
    best, error = result.best, result.error
    vector = {FEATURES: result.embedding and result.embedding.tolist()} if features else {}
    row = {
        "path": printable(result.name),
        "status": "ok" if error is None else "error",
        "label": best and best.label,
        "class_id": best and best.class_id,
        "score": best and best.score,
        "predictions": _told(result.predictions),
        "width": result.width,
        "height": result.height,
        "model": result.model,
        "version": result.version,
        "error": error and error.code,
        "message": error and error.message,
        **vector,
    }
    if result.frames:
        row["frames"] = [
            {
                "index": frame.index,
                "time_s": frame.seconds,
                "predictions": _told(frame.predictions),
                "error": frame.error and frame.error.code,
            }
            for frame in result.frames
        ]
    return row


def _told(predictions: Iterable[Prediction]) -> list[dict[str, Any]]:
    return [{"label": each.label, "class_id": each.class_id, "score": each.score} for each in predictions]
