"""The response formats of `POST /predict`: a class for each, after its response schemas.

To add a format, write its class, and add it to `Shape` and `SHAPES`.
"""

import functools
import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any, ClassVar

from pydantic import RootModel
from pydantic_core import to_json

from gateway.api.schemas import PredictResponse, Schema
from gateway.errors import GatewayError
from gateway.inference.prediction import Prediction, Predictions
from gateway.inference.request_spec import RequestSpec, Result


class Shape(StrEnum):
    """The format of a response."""

    NATIVE = "native"
    HUGGINGFACE = "huggingface"
    KSERVE_V1 = "kserve-v1"
    TORCHSERVE = "torchserve"
    ROBOFLOW = "roboflow"


class AnswerShape(ABC):
    """One format: how to write each file's result, and the JSON around the results."""

    documents: ClassVar[Any]
    """The response schema, a pydantic model or a union of them, for the OpenAPI page."""
    shows_a_lone_error: ClassVar[bool]
    """Whether the error of a single file is a result like others; else the response is a problem document."""

    @abstractmethod
    def item(self, result: Result, query: RequestSpec) -> object:
        """Convert one file's result or error to plain data for JSON."""

    @abstractmethod
    def around(self, results: Sequence[Result], query: RequestSpec) -> tuple[bytes, bytes]:
        """The JSON before and after the items, which are separated by commas."""


class Native(AnswerShape):
    """The gateway's own format: the model, the results and a summary."""

    documents: ClassVar[Any] = PredictResponse
    shows_a_lone_error = True

    def item(self, result: Result, query: RequestSpec) -> dict[str, object]:  # noqa: ARG002
        """As ResultOut has it."""
        return result_out(result)

    def around(self, results: Sequence[Result], query: RequestSpec) -> tuple[bytes, bytes]:
        """The model before the results, the summary after them."""
        version, failed = None, 0
        for result in results:
            version = version or result.model_version
            failed += result.error is not None
        summary = {"ok": len(results) - failed, "failed": failed}
        model = {"name": query.model_name, "version": version}
        return b'{"model":%b,"results":[' % to_json(model), b'],"summary":%b}' % to_json(summary)


class Foreign(AnswerShape):
    """The format of another service: one object for a single file, as from that service, and a list for several."""

    shows_a_lone_error = False

    def item(self, result: Result, query: RequestSpec) -> object:
        """The result, or the file's error."""
        return self.result(result, query) if result.error is None else self.error(result.error)

    def around(self, results: Sequence[Result], query: RequestSpec) -> tuple[bytes, bytes]:  # noqa: ARG002
        """The brackets of a list, or nothing for a single file."""
        return (b"[", b"]") if len(results) > 1 else (b"", b"")

    @abstractmethod
    def result(self, result: Result, query: RequestSpec) -> object:
        """The classes of one image."""

    @abstractmethod
    def error(self, error: GatewayError) -> object:
        """The error of one file."""


class HuggingFaceClass(Schema):
    """One class in Hugging Face's format."""

    label: str
    score: float


class HuggingFaceError(Schema):
    """The error of a file in Hugging Face's and KServe's formats."""

    error: str


class HuggingFace(Foreign):
    """The Inference API's image classification: a list of label and score."""

    documents = list[HuggingFaceClass] | list[list[HuggingFaceClass] | HuggingFaceError]

    def result(self, result: Result, query: RequestSpec) -> object:  # noqa: ARG002
        """The classes of one image, best first."""
        return [{"label": each.label, "score": each.score} for each in result.predictions]

    def error(self, error: GatewayError) -> object:
        """A sentence."""
        return {"error": error.message}


class KServeInstance(Schema):
    """One image in KServe's format: labels by descending score, and the scores."""

    classes: list[str]
    scores: list[float]


class KServeResponse(Schema):
    """KServe's data plane v1; always a list."""

    predictions: list[KServeInstance | HuggingFaceError]


class KServeV1(Foreign):
    """KServe's data plane v1, `predictions`, with TensorFlow Serving's `classes` and `scores` for each image."""

    documents = KServeResponse

    def result(self, result: Result, query: RequestSpec) -> object:  # noqa: ARG002
        """The labels of one image and their scores, best first."""
        known = result.predictions
        return {"classes": [each.label for each in known], "scores": [each.score for each in known]}

    def error(self, error: GatewayError) -> object:
        """A sentence."""
        return {"error": error.message}

    def around(self, results: Sequence[Result], query: RequestSpec) -> tuple[bytes, bytes]:  # noqa: ARG002
        """A list, even for one image."""
        return b'{"predictions":[', b"]}"


class TorchServeScores(RootModel[dict[str, float]]):
    """One image in TorchServe's format: a score for each label."""


class TorchServeError(Schema):
    """The error of a file in TorchServe's format."""

    code: int
    type: str
    message: str


class TorchServe(Foreign):
    """The response of TorchServe's image_classifier handler: an object of labels and probabilities."""

    documents = TorchServeScores | list[TorchServeScores | TorchServeError]

    def result(self, result: Result, query: RequestSpec) -> object:  # noqa: ARG002
        """A score for each label."""
        return {each.label: each.score for each in result.predictions}

    def error(self, error: GatewayError) -> dict[str, object]:
        """The HTTP status, the code and the message."""
        return {"code": int(error.status), "type": error.code, "message": error.message}


class RoboflowImage(Schema):
    """The size of an image in pixels."""

    width: int | None
    height: int | None


class RoboflowClass(Schema):
    """One class in Roboflow's format."""

    class_id: int
    confidence: float


class RoboflowResponse(Schema):
    """One image in Roboflow's format; a multi-label model has `predicted_classes` instead of `top` and `confidence`."""

    inference_id: str
    time: float
    """Seconds of inference in Triton, for the whole request."""
    image: RoboflowImage
    predictions: list[dict[str, Any]] | dict[str, RoboflowClass]
    top: str | None = None
    confidence: float | None = None
    predicted_classes: list[str] | None = None


class RoboflowError(Schema):
    """The error of a file in Roboflow's format."""

    error: TorchServeError


class Roboflow(Foreign):
    """Roboflow's classification: `top`, `confidence` and the classes; for multi-label models classes by name."""

    documents = RoboflowResponse | list[RoboflowResponse | RoboflowError]

    def result(self, result: Result, query: RequestSpec) -> object:
        """The classes and the size of one image, with the time of the whole request."""
        answer: dict[str, object] = {
            "inference_id": query.request_id,
            "time": round(query.stats.stages["infer"].seconds, 6),
            "image": {"width": result.width, "height": result.height},
        }
        if result.multi_label:
            answer["predictions"] = {
                each.label: {"class_id": each.class_id, "confidence": each.score} for each in result.predictions
            }
            return {**answer, "predicted_classes": [each.label for each in result.predictions]}
        answer["predictions"] = [
            {"class": each.label, "class_id": each.class_id, "confidence": each.score} for each in result.predictions
        ]
        best = result.predictions[0] if result.predictions else None
        return {**answer, "top": best.label if best else "", "confidence": best.score if best else 0.0}

    def error(self, error: GatewayError) -> object:
        """The members of TorchServe's error, in an object."""
        return {"error": TorchServe().error(error)}


SHAPES: dict[Shape, AnswerShape] = {
    Shape.NATIVE: Native(),
    Shape.HUGGINGFACE: HuggingFace(),
    Shape.KSERVE_V1: KServeV1(),
    Shape.ROBOFLOW: Roboflow(),
    Shape.TORCHSERVE: TorchServe(),
}
"""TorchServe is last because generated clients parse a response by the first schema that fits, and many fit that."""
PredictDocuments: Any = functools.reduce(operator.or_, (shape.documents for shape in SHAPES.values()))
"""The union of all response schemas of `POST /predict`, for the OpenAPI page."""


def result_out(result: Result) -> dict[str, object]:
    """Convert a result to the members of `ResultOut`, as plain data: 1,000 model objects take five times as long."""
    out: dict[str, object] = {
        "index": result.index,
        "filename": result.filename,
        "status": "ok" if result.error is None else "error",
        "width": result.width,
        "height": result.height,
        "predictions": _predictions_out(result.predictions),
        "error": None if result.error is None else _error_out(result.error),
    }
    if result.damaged and result.error is None:
        out["warning"] = "damaged"
    if result.frames is not None:
        out["frames"] = [
            {
                "index": frame.index,
                "time_s": None if frame.seconds is None else round(frame.seconds, 3),
                "predictions": _predictions_out(frame.predictions),
                "error": None if frame.error is None else _error_out(frame.error),
            }
            for frame in result.frames
        ]
    return out


def _predictions_out(predictions: Iterable[Prediction]) -> list[dict[str, object]]:
    known = Predictions.of(predictions)
    return [
        {"label": label, "class_id": class_id, "score": score}
        for label, class_id, score in zip(known.labels, known.class_ids, known.scores, strict=True)
    ]


def _error_out(error: GatewayError) -> dict[str, str]:
    return {"code": error.code, "message": error.message}
