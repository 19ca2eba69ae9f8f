"""POST /embed: images in, their embeddings out."""

from typing import Annotated

from fastapi import APIRouter, Request
from fastapi import Query as QueryParameter
from starlette.responses import Response

from gateway.api.body import open_files
from gateway.api.collected import answered
from gateway.api.problems import reading
from gateway.api.request_context import request_context
from gateway.api.routes.predict import FAULTS, REQUEST_BODY
from gateway.api.service_query import make_query
from gateway.api.state import state
from gateway.api.vectors import (
    PATH,
    SHAPES,
    EmbeddingParameters,
    EmbedResponse,
    OpenAIResponse,
)
from gateway.inference.backend import Vectors
from gateway.inference.selection import Selection

router = APIRouter(tags=["classify"])


@router.post(
    PATH,
    summary="Embeddings of images",
    response_model=EmbedResponse | OpenAIResponse,
    responses={200: {"description": "At least one file has an embedding; each file has its own result."}, **FAULTS},
    openapi_extra={"requestBody": REQUEST_BODY},
)
async def embed(request: Request, parameters: Annotated[EmbeddingParameters, QueryParameter()]) -> Response:
    """Compute an embedding of each image, with a model that was added with `--features`.

    Uploads, limits and results are as for `POST /predict`: a bad file does not affect the others.
    """
    parts = state(request)
    service, settings = parts["service"], parts["settings"]
    current = request_context(request)
    with current.tally.stages["read"]:
        form, uploads = await open_files(request, service.policy.limits, tuple(EmbeddingParameters.model_fields))
    if form:
        last = {name: values[-1] for name, values in form.items()}
        with reading(EmbeddingParameters):
            parameters = EmbeddingParameters.model_validate({**parameters.model_dump(exclude_none=True), **last})
    query = make_query(
        request,
        current,
        settings,
        model_name=parameters.model or settings.model,
        version=parameters.version,
        timeout_seconds=parameters.timeout,
        selection=Selection(top_k=parameters.top_k or 1, max_top_k=settings.max_top_k),
        vectors=Vectors.NEEDED,
    )
    current.event["model"] = query.model_name
    return await answered(request, query, uploads, SHAPES[parameters.format](parameters))
