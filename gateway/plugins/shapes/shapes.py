"""The response formats of other services: a class for each, after its response schemas.

To add a format, write its class, and add it to `SHAPES`.
"""

from collections.abc import Mapping, Sequence

from gateway.api.schemas import Schema
from gateway.errors import GatewayError
from gateway.hooks import AnswerShape
from gateway.inference.answer_shape import Foreign
from gateway.inference.request_spec import RequestSpec
from gateway.inference.result import Result


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

    def result(self, result: Result) -> object:
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

    def result(self, result: Result) -> object:
        """The labels of one image and their scores, best first."""
        known = result.predictions
        return {"classes": [each.label for each in known], "scores": [each.score for each in known]}

    def error(self, error: GatewayError) -> object:
        """A sentence."""
        return {"error": error.message}

    def around(self, results: Sequence[Result], spec: RequestSpec) -> tuple[bytes, bytes]:  # noqa: ARG002
        """A list, even for one image."""
        return b'{"predictions":[', b"]}"


SHAPES: Mapping[str, AnswerShape] = {
    "huggingface": HuggingFace(),
    "kserve-v1": KServeV1(),
}
