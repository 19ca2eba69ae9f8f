"""POST /embed: images in, their embeddings out."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi import Query as QueryParameter
from starlette.responses import Response

from gateway.api.answers import respond
from gateway.api.parameters import open_uploads, request_spec
from gateway.api.request_context import request_context
from gateway.api.route_table import traits
from gateway.api.schemas import FAULTS, REQUEST_BODY
from gateway.inference.backend import Embeddings
from gateway.inference.selection import Selection
from gateway.plugins.embed.embeddings import SHAPES, EmbeddingParameters, EmbedResponse, OpenAIResponse

router = APIRouter(tags=["classify"])


def _documented(parameters: Annotated[EmbeddingParameters, QueryParameter()]) -> None:
    """Declares the parameters in the OpenAPI document; the endpoint parses them itself."""


@router.post(
    "/embed",
    summary="Embeddings of images",
    response_model=EmbedResponse | OpenAIResponse,
    responses={200: {"description": "At least one file has an embedding; each file has its own result."}, **FAULTS},
    openapi_extra={"requestBody": REQUEST_BODY},
    dependencies=[Depends(_documented)],
)
@traits(takes_images=True, direct=True)
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
        selection=Selection(top_k=parameters.top_k or 1, max_top_k=settings.max_top_k),
        embeddings=Embeddings.NEEDED,
        strict=parameters.strict,
    )
    return await respond(context, spec, body, uploads, SHAPES[parameters.format](parameters))
