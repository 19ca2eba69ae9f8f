"""What `POST /embed` can be asked, and the shapes of its answer.

native   one result for each file, as from `POST /predict`, with its vector
openai   the embeddings of OpenAI's API (https://platform.openai.com/docs/api-reference/embeddings), for clients of it
"""

from base64 import b64encode
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict
from pydantic_core import to_json

from gateway.api.schemas import ErrorOut, ModelOut, PredictionOut, Schema, SummaryOut
from gateway.api.shapes import AnswerShape, Foreign, Native
from gateway.errors import GatewayError
from gateway.inference.parameters import ModelName, ModelVersion, TimeoutSeconds, TopK
from gateway.inference.request_spec import RequestSpec, Result

PATH = "/embed"


class VectorShape(StrEnum):
    """What an answer looks like."""

    NATIVE = "native"
    OPENAI = "openai"


class Encoding(StrEnum):
    """How a vector stands in JSON: an array of numbers, or its fp32, little-endian, in base64."""

    FLOAT = "float"
    BASE64 = "base64"


class EmbeddingParameters(BaseModel):
    """What `POST /embed` can be asked; multipart fields of the same names, before the first file, say the same."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    normalize: bool = False
    """Whether each vector is scaled to length 1, so that a product of two is their cosine."""
    encoding_format: Encoding = Encoding.FLOAT
    """Numbers, or in a third of the bytes the fp32 of the vector, little-endian, in base64."""
    top_k: TopK = None
    """Predictions beside each vector, best first; none by default."""
    model: ModelName = None
    """A model of `GET /models` with a `vector_size`; the default is a setting."""
    version: ModelVersion = None
    """A version of the model; without it the one in use answers."""
    timeout: TimeoutSeconds = None
    """Seconds that any one file may wait for its answer, from its last byte on."""
    format: VectorShape = VectorShape.NATIVE
    """The shape of the answer: this service's own, or OpenAI's."""


Embedding = list[float] | str | None


class EmbeddingResult(Schema):
    """The vector of one file."""

    index: int
    """Position of the file in the request, from 0."""
    filename: str
    status: Literal["ok", "error"]
    width: int | None
    """Pixels across, upright; null where the header could not be read."""
    height: int | None
    """Pixels down, upright; null where the header could not be read."""
    embedding: Embedding
    """The vector, in base64 where that was asked for; null where there is an error."""
    predictions: list[PredictionOut]
    """Empty unless `top_k` asks for some."""
    error: ErrorOut | None


class EmbedResponse(Schema):
    """One result for each uploaded file, in order."""

    model: ModelOut
    results: list[EmbeddingResult]
    summary: SummaryOut


class OpenAIEmbedding(Schema):
    """One vector in OpenAI's shape; a file without one has its `error` beside null."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: Embedding
    error: ErrorOut | None = None


class OpenAIUsage(Schema):
    """Tokens, which pictures have none of."""

    prompt_tokens: int = 0
    total_tokens: int = 0


class OpenAIResponse(Schema):
    """OpenAI's list of embeddings."""

    object: Literal["list"] = "list"
    data: list[OpenAIEmbedding]
    model: str
    usage: OpenAIUsage


class NativeVectors(Native):
    """As of `POST /predict`, with a vector in each result."""

    documents = EmbedResponse

    def __init__(self, asked: EmbeddingParameters) -> None:
        self._asked = asked

    def item(self, result: Result, query: RequestSpec) -> dict[str, object]:
        """As EmbeddingResult has it."""
        known = super().item(result, query)
        predictions, error = known.pop("predictions"), known.pop("error")
        if not self._asked.top_k:
            predictions = []
        return {**known, "embedding": _embedding(result, self._asked), "predictions": predictions, "error": error}


class OpenAIVectors(Foreign):
    """OpenAI's list of embeddings; a lone file's error is the whole answer's."""

    documents = OpenAIResponse

    def __init__(self, asked: EmbeddingParameters) -> None:
        self._asked = asked

    def item(self, result: Result, query: RequestSpec) -> object:
        """As OpenAIEmbedding has it."""
        return {"object": "embedding", "index": result.index, **cast("dict[str, object]", super().item(result, query))}

    def result(self, result: Result, query: RequestSpec) -> object:  # noqa: ARG002
        """Its vector."""
        return {"embedding": _embedding(result, self._asked)}

    def error(self, error: GatewayError) -> object:
        """The code and a sentence beside null."""
        return {"embedding": None, "error": {"code": error.code, "message": error.message}}

    def around(self, results: Sequence[Result], query: RequestSpec) -> tuple[bytes, bytes]:  # noqa: ARG002
        """A list, even for one image, and its model."""
        after = b'],"model":%b,"usage":%b}' % (to_json(query.model_name), to_json(OpenAIUsage()))
        return b'{"object":"list","data":[', after


SHAPES: dict[VectorShape, Callable[[EmbeddingParameters], AnswerShape]] = {
    VectorShape.NATIVE: NativeVectors,
    VectorShape.OPENAI: OpenAIVectors,
}


def _embedding(result: Result, asked: EmbeddingParameters) -> Any:  # noqa: ANN401  # a text, a list or None
    if result.vector is None:
        return None
    vector = normalized(result.vector) if asked.normalize else result.vector
    if asked.encoding_format is Encoding.BASE64:
        return b64encode(vector.astype("<f4").tobytes()).decode()
    return vector.tolist()


def normalized(vector: NDArray[np.float32]) -> NDArray[np.float32]:
    """A vector of length 1 in the same direction; zeros stay zeros."""
    length = float(np.linalg.norm(vector.astype(np.float64)))
    return (vector / length).astype(np.float32) if length > 0 else vector
