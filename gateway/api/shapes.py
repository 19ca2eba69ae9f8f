"""The shapes that an answer of `POST /predict` can have: a class each, behind the documents that it answers with.

To add one, write its class, and name it in `Shape` and in `SHAPES`.
"""

import functools
import operator
from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, ClassVar

from pydantic import RootModel
from pydantic_core import to_json

from gateway.api.schemas import ModelOut, PredictResponse, Schema, result_out, summarise
from gateway.errors import GatewayError
from gateway.inference.request_spec import RequestSpec, Result


class Shape(StrEnum):
    """What an answer looks like."""

    NATIVE = "native"
    HUGGINGFACE = "huggingface"
    KSERVE_V1 = "kserve-v1"
    TORCHSERVE = "torchserve"
    ROBOFLOW = "roboflow"


class AnswerShape(ABC):
    """One shape: what it makes of each file's result, and what it puts around them."""

    documents: ClassVar[Any]
    """The type of its answers, a pydantic model or a union of them, for the OpenAPI page."""
    shows_a_lone_error: ClassVar[bool]
    """Whether the error of an only file is a result like any; else a problem document is the whole answer."""

    @abstractmethod
    def item(self, result: Result, query: RequestSpec) -> object:
        """One file's result or error, as plain data for JSON."""

    @abstractmethod
    def around(self, results: Sequence[Result], query: RequestSpec) -> tuple[bytes, bytes]:
        """What stands in JSON before and after the items, which have commas between them."""


class Native(AnswerShape):
    """The gateway's own: the model, the results and a summary."""

    documents: ClassVar[Any] = PredictResponse
    shows_a_lone_error = True

    def item(self, result: Result, query: RequestSpec) -> dict[str, object]:  # noqa: ARG002
        """As ResultOut has it."""
        return result_out(result)

    def around(self, results: Sequence[Result], query: RequestSpec) -> tuple[bytes, bytes]:
        """The model before, the summary after the results."""
        version = next((result.model_version for result in results if result.model_version), None)
        model, summary = ModelOut(name=query.model_name, version=version), summarise(results)
        return b'{"model":%b,"results":[' % to_json(model), b'],"summary":%b}' % to_json(summary)


class Foreign(AnswerShape):
    """Another service's: one object for a request with one file, as from that service, and a list for several."""

    shows_a_lone_error = False

    def item(self, result: Result, query: RequestSpec) -> object:
        """A result, or in its place the file's error."""
        return self.result(result, query) if result.error is None else self.error(result.error)

    def around(self, results: Sequence[Result], query: RequestSpec) -> tuple[bytes, bytes]:  # noqa: ARG002
        """A list's brackets, or nothing."""
        return (b"[", b"]") if len(results) > 1 else (b"", b"")

    @abstractmethod
    def result(self, result: Result, query: RequestSpec) -> object:
        """The classes of one image."""

    @abstractmethod
    def error(self, error: GatewayError) -> object:
        """Why one file has none."""


class HuggingFaceClass(Schema):
    """One class in Hugging Face's shape."""

    label: str
    score: float


class HuggingFaceError(Schema):
    """A file without an answer in Hugging Face's shape, and in KServe's."""

    error: str


class HuggingFace(Foreign):
    """The Inference API's image classification: a list of label and score."""

    documents = list[HuggingFaceClass] | list[list[HuggingFaceClass] | HuggingFaceError]

    def result(self, result: Result, query: RequestSpec) -> object:  # noqa: ARG002
        """Its classes, best first."""
        return [{"label": each.label, "score": each.score} for each in result.predictions]

    def error(self, error: GatewayError) -> object:
        """A sentence."""
        return {"error": error.message}


class KServeInstance(Schema):
    """One image in KServe's shape: labels by falling score, and the scores."""

    classes: list[str]
    scores: list[float]


class KServeResponse(Schema):
    """KServe's data plane v1; it always has a list."""

    predictions: list[KServeInstance | HuggingFaceError]


class KServeV1(Foreign):
    """KServe's data plane v1, `predictions`, with TensorFlow Serving's `classes` and `scores` for each image."""

    documents = KServeResponse

    def result(self, result: Result, query: RequestSpec) -> object:  # noqa: ARG002
        """Its labels and their scores, best first."""
        known = result.predictions
        return {"classes": [each.label for each in known], "scores": [each.score for each in known]}

    def error(self, error: GatewayError) -> object:
        """A sentence."""
        return {"error": error.message}

    def around(self, results: Sequence[Result], query: RequestSpec) -> tuple[bytes, bytes]:  # noqa: ARG002
        """A list, even for one image."""
        return b'{"predictions":[', b"]}"


class TorchServeScores(RootModel[dict[str, float]]):
    """One image in TorchServe's shape: a score for each label."""


class TorchServeError(Schema):
    """A file without an answer in TorchServe's shape."""

    code: int
    type: str
    message: str


class TorchServe(Foreign):
    """The answer of its image_classifier handler: an object of label and probability."""

    documents = TorchServeScores | list[TorchServeScores | TorchServeError]

    def result(self, result: Result, query: RequestSpec) -> object:  # noqa: ARG002
        """A score for each label."""
        return {each.label: each.score for each in result.predictions}

    def error(self, error: GatewayError) -> dict[str, object]:
        """The HTTP status, the code and a sentence."""
        return {"code": int(error.status), "type": error.code, "message": error.message}


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


class Roboflow(Foreign):
    """Its classification inference: `top`, `confidence` and the classes; for multi-label models classes by name."""

    documents = RoboflowResponse | list[RoboflowResponse | RoboflowError]

    def result(self, result: Result, query: RequestSpec) -> object:
        """The image's classes and size, with the time of the whole request."""
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

    def error(self, error: GatewayError) -> object:
        """TorchServe's members in an object."""
        return {"error": TorchServe().error(error)}


SHAPES: dict[Shape, AnswerShape] = {
    Shape.NATIVE: Native(),
    Shape.HUGGINGFACE: HuggingFace(),
    Shape.KSERVE_V1: KServeV1(),
    Shape.ROBOFLOW: Roboflow(),
    Shape.TORCHSERVE: TorchServe(),
}
"""In an order for generated clients, which read an answer as the first document that it fits: many fit TorchServe's."""
PredictDocuments: Any = functools.reduce(operator.or_, (shape.documents for shape in SHAPES.values()))
"""Whatever `POST /predict` may answer with, for the OpenAPI page."""
