"""The response formats of other services: a class for each, after its response schemas.

To add a format, write its class, and add it to `SHAPES`.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence

from gateway.api.schemas import Schema
from gateway.hooks import AnswerShape
from gateway.inference.request_spec import RequestSpec
from gateway.inference.result import Result


class OneOrList(AnswerShape):
    """One object for a single file, and a list for several."""

    def item(self, result: Result, spec: RequestSpec) -> object:  # noqa: ARG002
        """The result, or a sentence with the file's error."""
        return self.classes(result) if result.error is None else {"error": result.error.message}

    def around(self, results: Sequence[Result], spec: RequestSpec) -> tuple[bytes, bytes]:  # noqa: ARG002
        """The brackets of a list, or nothing for a single file."""
        return (b"[", b"]") if len(results) > 1 else (b"", b"")

    @abstractmethod
    def classes(self, result: Result) -> object:
        """The classes of one image."""


class HuggingFaceClass(Schema):
    """One class in Hugging Face's format."""

    label: str
    score: float


class HuggingFaceError(Schema):
    """The error of a file in Hugging Face's and KServe's formats."""

    error: str


class HuggingFace(OneOrList):
    """The Inference API's image classification: a list of label and score."""

    documents = list[HuggingFaceClass] | list[list[HuggingFaceClass] | HuggingFaceError]

    def classes(self, result: Result) -> object:
        """The classes of one image, best first."""
        return [{"label": each.label, "score": each.score} for each in result.predictions]


class KServeInstance(Schema):
    """One image in KServe's format: labels by descending score, and the scores."""

    classes: list[str]
    scores: list[float]


class KServeResponse(Schema):
    """KServe's data plane v1; always a list."""

    predictions: list[KServeInstance | HuggingFaceError]


class KServeV1(OneOrList):
    """KServe's data plane v1, `predictions`, with TensorFlow Serving's `classes` and `scores` for each image."""

    documents = KServeResponse

    def classes(self, result: Result) -> object:
        """The labels of one image and their scores, best first."""
        known = result.predictions
        return {"classes": [each.label for each in known], "scores": [each.score for each in known]}

    def around(self, results: Sequence[Result], spec: RequestSpec) -> tuple[bytes, bytes]:  # noqa: ARG002
        """A list, even for one image."""
        return b'{"predictions":[', b"]}"


SHAPES: Mapping[str, AnswerShape] = {
    "huggingface": HuggingFace(),
    "kserve-v1": KServeV1(),
}
