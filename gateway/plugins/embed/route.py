"""POST /embed: images in, their embeddings out, as one result for each file."""

from base64 import b64encode
from enum import StrEnum
from typing import Any, Literal

import numpy as np
from fastapi import APIRouter, Request
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict
from starlette.responses import Response

from gateway.api.answers import Native, respond
from gateway.api.parameters import (
    ModelName,
    ModelVersion,
    TimeoutSeconds,
    TopK,
    image_route,
    open_uploads,
    request_spec,
)
from gateway.api.request_context import request_context
from gateway.api.schemas import ErrorOut, ModelOut, PredictionOut, Schema, SummaryOut
from gateway.inference.backend import Embeddings
from gateway.inference.request_spec import RequestSpec
from gateway.inference.result import Result, Selection

router = APIRouter(tags=["classify"])


class Encoding(StrEnum):
    """The encoding of an embedding in JSON: an array of numbers, or base64 of fp32, little-endian."""

    FLOAT = "float"
    BASE64 = "base64"


class EmbeddingParameters(BaseModel):
    """Parameters of `POST /embed`: in the query, or as multipart fields of the same names, best before the files."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    normalize: bool = False
    """Whether each embedding is scaled to length 1, so that the dot product of two is their cosine."""
    encoding_format: Encoding = Encoding.FLOAT
    """float: an array of numbers; base64: fp32, little-endian, in base64, a third of the bytes."""
    top_k: TopK = None
    """Predictions in addition to each embedding, best first; none by default."""
    model: ModelName = None
    """A model of `GET /models` with an `embedding_size`; the default is a setting."""
    version: ModelVersion = None
    """A version of the model; default: the version in use."""
    timeout: TimeoutSeconds = None
    """Deadline for each file in seconds, from its last byte on."""
    strict: bool = False
    """Whether a damaged JPEG is refused; by default its result has `warning`."""


Embedding = list[float] | str | None


class EmbeddingResult(Schema):
    """The embedding of one file."""

    index: int
    """Position of the file in the request, from 0."""
    filename: str
    status: Literal["ok", "error"]
    width: int | None
    """Pixels across, upright; null where the header could not be read."""
    height: int | None
    """Pixels down, upright; null where the header could not be read."""
    embedding: Embedding
    """The embedding, as selected by `encoding_format`; null if there is an error."""
    predictions: list[PredictionOut]
    """Empty unless `top_k` is set."""
    error: ErrorOut | None
    warning: Literal["damaged"] | None = None
    """Present only if the file is a damaged JPEG: some of the pixels that the model saw are wrong."""


class EmbedResponse(Schema):
    """One result for each uploaded file, in order."""

    model: ModelOut
    results: list[EmbeddingResult]
    summary: SummaryOut


class NativeEmbeddings(Native):
    """Like the format of `POST /predict`, with an embedding in each result."""

    documents = EmbedResponse

    def __init__(self, parameters: EmbeddingParameters) -> None:
        self._parameters = parameters

    def item(self, result: Result, spec: RequestSpec) -> dict[str, object]:
        """The members of EmbeddingResult."""
        known = super().item(result, spec)
        predictions, error = known.pop("predictions"), known.pop("error")
        if not self._parameters.top_k:
            predictions = []
        return {**known, "embedding": _embedding(result, self._parameters), "predictions": predictions, "error": error}


def _embedding(result: Result, parameters: EmbeddingParameters) -> Any:  # noqa: ANN401  # a text, a list or None
    if (embedding := result.row.embedding) is None:
        return None
    if parameters.normalize:
        embedding = normalized(embedding)
    if parameters.encoding_format is Encoding.BASE64:
        return b64encode(embedding.astype("<f4").tobytes()).decode()
    return embedding.tolist()


def normalized(embedding: NDArray[np.float32]) -> NDArray[np.float32]:
    """Scale an embedding to length 1; a zero vector stays zero."""
    length = float(np.linalg.norm(embedding.astype(np.float64)))
    return (embedding / length).astype(np.float32) if length > 0 else embedding


@image_route(
    router,
    "/embed",
    EmbeddingParameters,
    {"description": "At least one file has an embedding; each file has its own result."},
    summary="Embeddings of images",
    response_model=EmbedResponse,
)
async def embed(request: Request) -> Response:
    """Compute an embedding of each image, with a model that was added with `--embeddings`.

    Uploads, limits and results are as for `POST /predict`: a bad file does not affect the others.
    """
    context = request_context(request)
    settings = context.settings
    parameters, body, uploads = await open_uploads(request, context, EmbeddingParameters)
    spec = request_spec(
        request,
        context,
        model_name=parameters.model or settings.model,
        version=parameters.version,
        timeout_seconds=parameters.timeout,
        selection=Selection(top_k=parameters.top_k or 1),
        embeddings=Embeddings.NEEDED,
        strict=parameters.strict,
    )
    return await respond(context, spec, body, uploads, NativeEmbeddings(parameters))
