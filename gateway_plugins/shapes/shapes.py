"""The response formats of other services: a class for each, after its response schemas.

To add a format, write its class, and add it to `SHAPES`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import RootModel

from gateway.api.schemas import Schema
from gateway.errors import GatewayError
from gateway.hooks import AnswerShape
from gateway.inference.request_spec import RequestSpec
from gateway.inference.result import Result
from gateway_plugins.shared.foreign_shape import Foreign


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

    def result(self, result: Result, spec: RequestSpec) -> object:  # noqa: ARG002
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

    def result(self, result: Result, spec: RequestSpec) -> object:  # noqa: ARG002
        """The labels of one image and their scores, best first."""
        known = result.predictions
        return {"classes": [each.label for each in known], "scores": [each.score for each in known]}

    def error(self, error: GatewayError) -> object:
        """A sentence."""
        return {"error": error.message}

    def around(self, results: Sequence[Result], spec: RequestSpec) -> tuple[bytes, bytes]:  # noqa: ARG002
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
    fits_much = True

    def result(self, result: Result, spec: RequestSpec) -> object:  # noqa: ARG002
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

    def result(self, result: Result, spec: RequestSpec) -> object:
        """The classes and the size of one image, with the time of the whole request."""
        answer: dict[str, object] = {
            "inference_id": spec.request_id,
            "time": round(spec.stats.stages["infer"].seconds, 6),
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


SHAPES: Mapping[str, AnswerShape] = {
    "huggingface": HuggingFace(),
    "kserve-v1": KServeV1(),
    "torchserve": TorchServe(),
    "roboflow": Roboflow(),
}
