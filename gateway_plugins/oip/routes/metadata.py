"""GET /v2 and below: server metadata, readiness, and the inputs and outputs of models."""

from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from gateway import __version__
from gateway.api.request_context import request_context
from gateway.api.route_table import Access, traits
from gateway.api.routes.health import is_ready
from gateway.errors import ModelNotFound
from gateway.inference.model_info import ModelInfo
from gateway.values.validation import VERSION_PATTERN
from gateway_plugins.oip.documents import ModelMetadata, ServerMetadata, V2Error

router = APIRouter(tags=["Open Inference Protocol"])

NAME = "triton-image-gateway"
EXTENSIONS = ["binary_tensor_data", "classification", "sequence", "model_configuration", "statistics"]
NOT_READY = HTTPStatus.BAD_REQUEST
"""The protocol signals "not ready" by a 4xx status with an empty body."""

LIVE = Response()

ModelName = Annotated[str, Path(min_length=1, max_length=256)]
ModelVersion = Annotated[str, Path(pattern=VERSION_PATTERN)]

_READY: dict[int | str, dict[str, Any]] = {NOT_READY: {"description": "Not ready."}}
MODEL_ERRORS: dict[int | str, dict[str, Any]] = {
    404: {"model": V2Error, "description": "There is no such model or version."},
    422: {"model": V2Error, "description": "The version is not a number."},
    503: {"model": V2Error, "description": "Triton cannot be reached."},
}

_METADATA: dict[str, Any] = {"response_model": ModelMetadata, "responses": MODEL_ERRORS}


@router.get("/v2", summary="Open Inference Protocol: server metadata", response_model=ServerMetadata)
async def server_metadata() -> ServerMetadata:
    """Name and version of the gateway, and the protocol extensions that it supports."""
    return ServerMetadata(name=NAME, version=__version__, extensions=EXTENSIONS)


@router.get("/v2/health/live", summary="Open Inference Protocol: is the process alive?", response_class=Response)
@traits(access=Access.OPEN, polled=True, constant=LIVE)
async def server_live() -> Response:
    """Always 200: the process responds."""
    return LIVE


@router.get(
    "/v2/health/ready",
    summary="Open Inference Protocol: can images be classified?",
    response_class=Response,
    responses=_READY,
)
@traits(access=Access.OPEN, polled=True, direct=True)
async def server_ready(request: Request) -> Response:
    """200 while `/health/ready` is 200, else 400."""
    context = request_context(request)
    return _boolean(is_ready(context.shared, context.service.backend.health()))


@router.get("/v2/models/{name}", summary="Open Inference Protocol: inputs and outputs of a model", **_METADATA)
async def get_model_metadata(request: Request, name: ModelName) -> Response:
    """One input, IMAGE: encoded images. Outputs: a score for each class, and for each image "ok" or an error code."""
    return await _metadata(request, name, None)


@router.get(
    "/v2/models/{name}/versions/{version}",
    summary="Open Inference Protocol: inputs and outputs of a version",
    **_METADATA,
)
async def get_version_metadata(request: Request, name: ModelName, version: ModelVersion) -> Response:
    """Same as for the model: all versions have the same inputs and outputs."""
    return await _metadata(request, name, version)


@router.get(
    "/v2/models/{name}/ready",
    summary="Open Inference Protocol: is a model ready?",
    response_class=Response,
    responses={**_READY, **MODEL_ERRORS},
)
async def model_ready(request: Request, name: ModelName) -> Response:
    """200 if the model is loaded; the default model is ready while `/health/ready` is 200."""
    return await _model_ready(request, name, None)


@router.get(
    "/v2/models/{name}/versions/{version}/ready",
    summary="Open Inference Protocol: is a version ready?",
    response_class=Response,
    responses={**_READY, **MODEL_ERRORS},
)
async def version_ready(request: Request, name: ModelName, version: ModelVersion) -> Response:
    """Same as for the model, and 404 if the version is not loaded."""
    return await _model_ready(request, name, version)


async def _metadata(request: Request, name: str, version: str | None) -> Response:
    document = ModelMetadata.of(await model_info(request, name, version))
    return Response(document.model_dump_json(), media_type="application/json")


async def model_info(request: Request, name: str, version: str | None) -> ModelInfo:
    """A model that classifies images; raises Forbidden, and ModelNotFound also for a version."""
    context = request_context(request)
    context.check_model(name)
    info = await context.service.backend.model(name)
    if version is not None and version not in info.versions:
        raise ModelNotFound(f"There is no version {version} of {name!r}; it has {', '.join(info.versions)}.")
    return info


async def _model_ready(request: Request, name: str, version: str | None) -> Response:
    context = request_context(request)
    info = await model_info(request, name, version)
    # Triton reports a model as ready even if its process has died; for the default model, probes detect that.
    is_default = name == context.settings.model
    return _boolean(info.ready and (not is_default or is_ready(context.shared, context.service.backend.health())))


def _boolean(answer: bool) -> Response:  # noqa: FBT001  # the value of the response
    return Response(status_code=HTTPStatus.OK if answer else NOT_READY)
