"""The gateway's own response format; see gateway.hooks.AnswerShape."""

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from pydantic_core import to_json

from gateway.api.schemas import PredictResponse
from gateway.errors import GatewayError
from gateway.inference.answer_shape import AnswerShape
from gateway.inference.prediction import Prediction, Predictions
from gateway.inference.request_spec import RequestSpec
from gateway.inference.result import Result

NDJSON = "application/x-ndjson"
"""The media type of JSON lines, which only the native format has."""


class Native(AnswerShape):
    """The gateway's own format: the model, the results and a summary."""

    documents: ClassVar[Any] = PredictResponse
    shows_a_lone_error = True

    def item(self, result: Result, spec: RequestSpec) -> dict[str, object]:  # noqa: ARG002
        """The members of `ResultOut`, as plain data: 1,000 model objects take five times as long."""
        row, error = result.row, result.row.error
        out: dict[str, object] = {
            "index": result.index,
            "filename": result.filename,
            "status": "ok" if error is None else "error",
            "width": result.width,
            "height": result.height,
            "predictions": predictions_out(row.predictions),
            "error": None if error is None else error_out(error),
        }
        if row.damaged and error is None:
            out["warning"] = "damaged"
        out.update(result.members())
        return out

    def around(self, results: Sequence[Result], spec: RequestSpec) -> tuple[bytes, bytes]:
        """The model before the results, the summary after them."""
        version, failed = None, 0
        for result in results:
            version = version or result.row.model_version or None
            failed += result.row.error is not None
        summary = {"ok": len(results) - failed, "failed": failed}
        model = {"name": spec.model_name, "version": version}
        return b'{"model":%b,"results":[' % to_json(model), b'],"summary":%b}' % to_json(summary)


def predictions_out(predictions: Iterable[Prediction]) -> list[dict[str, object]]:
    """Convert predictions to plain data."""
    known = predictions if isinstance(predictions, Predictions) else Predictions.of(predictions)
    return [
        {"label": label, "class_id": class_id, "score": score}
        for label, class_id, score in zip(known.labels, known.class_ids, known.scores, strict=True)
    ]


def error_out(error: GatewayError) -> dict[str, str]:
    """Convert an error to plain data."""
    return {"code": error.code, "message": error.message}
