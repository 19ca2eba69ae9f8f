"""The answer of `POST /predict` in the shapes that clients of other services know already.

huggingface   the Inference API's image classification: a list of label and score
kserve-v1     KServe's data plane v1, `predictions`, with TensorFlow Serving's `classes` and `scores` for each image
torchserve    its image_classifier handler: an object of label and probability
roboflow      its classification inference: `top`, `confidence` and the classes; for multi-label models classes by name

A request with one file gets one object, as from those services; one with several gets a list. A file without an answer
has its error in its place.
"""

from collections.abc import Callable
from typing import Any

from pydantic import RootModel

from gateway.api.schemas import Schema, Shape
from gateway.errors import GatewayError
from gateway.inference.query import Query, Result


class HuggingFaceClass(Schema):
    """One class in Hugging Face's shape."""

    label: str
    score: float


class HuggingFaceError(Schema):
    """A file without an answer in Hugging Face's shape."""

    error: str


class KServeInstance(Schema):
    """One image in KServe's shape: labels by falling score, and the scores."""

    classes: list[str]
    scores: list[float]


class KServeResponse(Schema):
    """KServe's data plane v1; it always has a list."""

    predictions: list[KServeInstance | HuggingFaceError]


class TorchServeScores(RootModel[dict[str, float]]):
    """One image in TorchServe's shape: a score for each label."""


class TorchServeError(Schema):
    """A file without an answer in TorchServe's shape."""

    code: int
    type: str
    message: str


class RoboflowImage(Schema):
    """The size of an image in pixels."""

    width: int | None
    height: int | None


class RoboflowClass(Schema):
    """One class in Roboflow's shape."""

    class_id: int
    confidence: float


class RoboflowResponse(Schema):
    """One image in Roboflow's shape; `predicted_classes` stands for `top` and `confidence` in a multi-label model's."""

    inference_id: str
    time: float
    """Seconds with Triton, of the whole request."""
    image: RoboflowImage
    predictions: list[dict[str, Any]] | dict[str, RoboflowClass]
    top: str | None = None
    confidence: float | None = None
    predicted_classes: list[str] | None = None


class RoboflowError(Schema):
    """A file without an answer in Roboflow's shape."""

    error: TorchServeError


ForeignResponse = (
    list[HuggingFaceClass]
    | list[list[HuggingFaceClass] | HuggingFaceError]
    | KServeResponse
    | RoboflowResponse
    | list[RoboflowResponse | RoboflowError]
    | TorchServeScores
    | list[TorchServeScores | TorchServeError]
)
"""Every shape but the native one."""


def shaped(shape: Shape, result: Result, query: Query) -> object:
    """One result in another shape than the native one; plain data for JSON."""
    return _ONE[shape](result, query) if result.error is None else _ERROR[shape](result.error)


def brackets(shape: Shape, count: int) -> tuple[bytes, bytes]:
    """What stands in JSON before and after `count` results, which have commas between them."""
    if shape is Shape.KSERVE_V1:
        return b'{"predictions":[', b"]}"
    return (b"[", b"]") if count > 1 else (b"", b"")


def _huggingface(result: Result, _: Query) -> object:
    return [{"label": each.label, "score": each.score} for each in result.predictions]


def _kserve(result: Result, _: Query) -> object:
    return {
        "classes": [each.label for each in result.predictions],
        "scores": [each.score for each in result.predictions],
    }


def _torchserve(result: Result, _: Query) -> object:
    return {each.label: each.score for each in result.predictions}


def _roboflow(result: Result, query: Query) -> object:
    answer: dict[str, object] = {
        "inference_id": query.request_id,
        "time": round(query.tally.stages["infer"].seconds, 6),
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


def _sentence(error: GatewayError) -> object:
    return {"error": error.message}


def _torchserve_error(error: GatewayError) -> dict[str, object]:
    return {"code": int(error.status), "type": error.code, "message": error.message}


_ONE: dict[Shape, Callable[[Result, Query], object]] = {
    Shape.HUGGINGFACE: _huggingface,
    Shape.KSERVE_V1: _kserve,
    Shape.TORCHSERVE: _torchserve,
    Shape.ROBOFLOW: _roboflow,
}
_ERROR: dict[Shape, Callable[[GatewayError], object]] = {
    Shape.HUGGINGFACE: _sentence,
    Shape.KSERVE_V1: _sentence,
    Shape.TORCHSERVE: _torchserve_error,
    Shape.ROBOFLOW: lambda error: {"error": _torchserve_error(error)},
}
