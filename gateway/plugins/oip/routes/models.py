"""GET /v2 and below, and the index: what the server and its models are, and what Triton's tools read of them.

The extensions of Triton: https://github.com/triton-inference-server/server/tree/main/docs/protocol. Nothing is changed
by them.
"""

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from pydantic import BaseModel, StrictBool, ValidationError
from pydantic_core import to_json
from starlette.responses import Response
from tritonclient.grpc import service_pb2 as pb

from gateway import __version__
from gateway.api.body import Body
from gateway.api.request_context import RequestContext, request_context
from gateway.api.route_table import Access, traits
from gateway.api.routes.health import is_ready
from gateway.deadline import Deadline
from gateway.errors import InvalidBody, InvalidParameter, ModelNotFound, NotFound
from gateway.inference.backend import ModelInfo
from gateway.ingest.json_text import JsonError, decode, invalid
from gateway.plugins.oip.documents import ModelMetadata, ServerMetadata, V2Error
from gateway.plugins.oip.triton_json import as_document
from gateway.values.validation import VERSION_PATTERN

router = APIRouter(tags=["Open Inference Protocol"])

NAME = "triton-image-gateway"
EXTENSIONS = ["binary_tensor_data", "classification", "sequence", "model_configuration", "statistics"]
NOT_READY = HTTPStatus.BAD_REQUEST
"""The protocol signals "not ready" by a 4xx status with an empty body."""
MAX_INDEX_BYTES = 1_024
"""Bytes of the body of a request for the index, which has one member."""
LIVE = Response()

ModelName = Annotated[str, Path(min_length=1, max_length=256)]
ModelVersion = Annotated[str, Path(pattern=VERSION_PATTERN)]
Handler = Callable[[Request, str, str | None], Awaitable[Response]]

_DATA_TYPES = {"BYTES": "TYPE_STRING", "FP32": "TYPE_FP32"}
_READY: dict[int | str, dict[str, Any]] = {NOT_READY: {"description": "Not ready."}}
_UNREACHABLE: dict[int | str, dict[str, Any]] = {503: {"model": V2Error, "description": "Triton cannot be reached."}}
_MODEL: dict[int | str, dict[str, Any]] = {
    404: {"model": V2Error, "description": "There is no such model or version."},
    422: {"model": V2Error, "description": "The version is not a number."},
    **_UNREACHABLE,
}
_INVALID: dict[int | str, dict[str, Any]] = {
    400: {"model": V2Error, "description": "The body is not valid JSON."},
    413: {"model": V2Error, "description": "The body is too large."},
    415: {"model": V2Error, "description": "The body is compressed."},
    422: {"model": V2Error, "description": "A member of the body is invalid."},
}


class IndexRequest(BaseModel):
    """Which models the index lists."""

    ready: StrictBool = False
    """Whether to list only models that are ready."""


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


@router.get(
    "/v2/models/stats",
    summary="Open Inference Protocol: statistics of all models",
    response_class=Response,
    responses=_UNREACHABLE,
)
async def get_statistics_of_all(request: Request) -> Response:
    """The statistics of every model that classifies images, is ready, and may be used by the API key."""
    context = request_context(request)
    found = [await _statistics(context, info.name, "") for info in await _allowed_models(context) if info.ready]
    return _json({"model_stats": [each for document in found for each in document["model_stats"]]})


@router.post(
    "/v2/repository/index",
    summary="Open Inference Protocol: the models and their states",
    response_class=Response,
    responses={**_UNREACHABLE, **_INVALID},
    openapi_extra={"requestBody": {"content": {"application/json": {"schema": IndexRequest.model_json_schema()}}}},
)
async def get_index(request: Request) -> Response:
    """Every version of each model that classifies images and that the API key may use.

    A model that is not loaded may have the version "".
    """
    context = request_context(request)
    body = await Body(request, context).read_whole(MAX_INDEX_BYTES, "max_index_bytes")
    try:
        only_ready = IndexRequest.model_validate(decode(body or b"{}", max_bytes=MAX_INDEX_BYTES)).ready
    except JsonError as exc:
        raise invalid(str(exc)) from exc
    except ValidationError as exc:
        if exc.errors()[0]["loc"]:
            raise InvalidParameter("'ready': must be true or false.") from exc
        raise InvalidBody('The body is a JSON object, such as {"ready": true}.') from exc
    return _json(
        [
            {
                "name": info.name,
                "version": version,
                "state": "READY" if info.ready else "UNAVAILABLE",
                "reason": info.reason or "",
            }
            for info in await _allowed_models(context)
            if info.ready or not only_ready
            for version in info.versions or ("",)
        ]
    )


@router.post("/v2/repository/models/{name}/load", include_in_schema=False)
@router.post("/v2/repository/models/{name}/unload", include_in_schema=False)
async def refuse_to_change(request: Request, name: ModelName) -> None:
    """The gateway loads no models below /v2; name the routes that do."""
    request_context(request).check_model(name)
    raise NotFound(
        "Models are not loaded or unloaded below /v2: send POST /models/{name}/load or /models/{name}/unload with an "
        "admin key, where GATEWAY_ADMIN_KEYS_FILE is set."
    )


async def metadata(request: Request, name: str, version: str | None) -> Response:
    """One input, IMAGE: encoded images. Outputs: a score for each class, and for each image "ok" or an error code."""
    document = ModelMetadata.of(await _model_info(request, name, version))
    return Response(document.model_dump_json(), media_type="application/json")


async def ready(request: Request, name: str, version: str | None) -> Response:
    """200 if the model is loaded; the default model is ready while `/health/ready` is 200."""
    context = request_context(request)
    info = await _model_info(request, name, version)
    # Triton reports a model as ready even if its process has died; for the default model, probes detect that.
    is_default = name == context.settings.model
    return _boolean(info.ready and (not is_default or is_ready(context.shared, context.service.backend.health())))


async def config(request: Request, name: str, version: str | None) -> Response:
    """The inputs and outputs as a ModelConfig of Triton; `max_batch_size` is the number of images of a request.

    Its platform is not that of the metadata: tools look for the steps of an "ensemble", which the gateway does not
    serve.
    """
    model = ModelMetadata.of(await _model_info(request, name, version))
    tensors = {
        member: [{"name": each.name, "data_type": _DATA_TYPES[each.datatype], "dims": each.shape[1:]} for each in given]
        for member, given in (("input", model.inputs), ("output", model.outputs))
    }
    most = request_context(request).settings.max_files
    return _json({"name": model.name, "platform": NAME, "max_batch_size": most, **tensors})


async def statistics(request: Request, name: str, version: str | None) -> Response:
    """Triton's counts and durations for a model since it was loaded; with several Tritons, of one of them."""
    await _model_info(request, name, version)
    return _json(await _statistics(request_context(request), name, version or ""))


def _add(end: str, handler: Handler, what: str, **documented: Any) -> None:  # noqa: ANN401  # options of FastAPI
    """Add the route of a model and the one of a version, which has the same inputs and outputs."""
    name = handler.__name__
    documented = {"description": handler.__doc__, "responses": _MODEL, "response_class": Response, **documented}

    @router.get(
        f"/v2/models/{{name}}{end}", name=name, summary=f"Open Inference Protocol: {what} of a model", **documented
    )
    async def of_model(request: Request, name: ModelName) -> Response:
        return await handler(request, name, None)

    @router.get(
        f"/v2/models/{{name}}/versions/{{version}}{end}",
        name=f"version_{name}",
        summary=f"Open Inference Protocol: {what} of a version",
        **documented,
    )
    async def of_version(request: Request, name: ModelName, version: ModelVersion) -> Response:
        return await handler(request, name, version)


_add("", metadata, "inputs and outputs", response_model=ModelMetadata)
_add("/ready", ready, "readiness", responses={**_READY, **_MODEL})
_add("/config", config, "configuration")
_add("/stats", statistics, "statistics")


async def _model_info(request: Request, name: str, version: str | None) -> ModelInfo:
    """A model that classifies images; raises Forbidden, and ModelNotFound also for a version."""
    context = request_context(request)
    context.check_model(name)
    info = await context.service.backend.model(name)
    if version is not None and version not in info.versions:
        raise ModelNotFound(f"There is no version {version} of {name!r}; it has {', '.join(info.versions)}.")
    return info


async def _allowed_models(context: RequestContext) -> list[ModelInfo]:
    return [info for info in await context.service.backend.models() if context.caller.allows_model(info.name)]


async def _statistics(context: RequestContext, name: str, version: str) -> dict[str, Any]:
    deadline = Deadline.after(context.settings.ready_timeout_seconds)
    message = pb.ModelStatisticsRequest(name=name, version=version).SerializeToString()
    answer = await context.service.backend.call("ModelStatistics", name, message, deadline)
    return as_document(pb.ModelStatisticsResponse.FromString(answer))


def _json(document: object) -> Response:
    return Response(to_json(document), media_type="application/json")


def _boolean(answer: bool) -> Response:  # noqa: FBT001  # the value of the response
    return Response(status_code=HTTPStatus.OK if answer else NOT_READY)
