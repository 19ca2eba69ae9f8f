"""What Triton's tools read before and during a measurement: configurations, statistics and the index of the models.

The extensions of Triton: https://github.com/triton-inference-server/server/tree/main/docs/protocol. Nothing is changed
by them.
"""

from typing import Any

from fastapi import APIRouter, Request
from pydantic_core import to_json
from starlette.responses import Response
from tritonclient.grpc import service_pb2 as pb

from gateway.api.body import Body
from gateway.api.request_context import RequestContext, request_context
from gateway.errors import InvalidBody, InvalidParameter, NotFound
from gateway.inference.model_info import ModelInfo
from gateway_plugins.oip.documents import ModelMetadata, V2Error
from gateway_plugins.oip.routes.metadata import MODEL_ERRORS, NAME, ModelName, ModelVersion, model_info
from gateway_plugins.oip.triton_calls import as_document, call
from gateway_plugins.shared import json_text
from gateway_plugins.shared.whole_body import read_whole

router = APIRouter(tags=["Open Inference Protocol"])

_UNREACHABLE: dict[int | str, dict[str, Any]] = {503: {"model": V2Error, "description": "Triton cannot be reached."}}
_INVALID: dict[int | str, dict[str, Any]] = {
    400: {"model": V2Error, "description": "The body is not valid JSON."},
    413: {"model": V2Error, "description": "The body is too large."},
    415: {"model": V2Error, "description": "The body is compressed."},
    422: {"model": V2Error, "description": "A member of the body is invalid."},
}
_INDEX = {
    "type": "object",
    "properties": {
        "ready": {"type": "boolean", "description": "Whether to list only models that are ready.", "default": False}
    },
}
MAX_INDEX_BYTES = 1_024
"""Bytes of the body of a request for the index, which has one member."""
_DATA_TYPES = {"BYTES": "TYPE_STRING", "FP32": "TYPE_FP32"}


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


@router.get(
    "/v2/models/{name}/stats",
    summary="Open Inference Protocol: statistics of a model",
    response_class=Response,
    responses=MODEL_ERRORS,
)
async def get_statistics(request: Request, name: ModelName) -> Response:
    """Triton's counts and durations for a model since it was loaded; with several Tritons, of one of them."""
    return await _statistics_of(request, name, None)


@router.get(
    "/v2/models/{name}/versions/{version}/stats",
    summary="Open Inference Protocol: statistics of a version",
    response_class=Response,
    responses=MODEL_ERRORS,
)
async def get_version_statistics(request: Request, name: ModelName, version: ModelVersion) -> Response:
    """Same as for the model, for one version."""
    return await _statistics_of(request, name, version)


@router.get(
    "/v2/models/{name}/config",
    summary="Open Inference Protocol: configuration of a model",
    response_class=Response,
    responses=MODEL_ERRORS,
)
async def get_config(request: Request, name: ModelName) -> Response:
    """The inputs and outputs as a ModelConfig of Triton; `max_batch_size` is the number of images of a request."""
    return await _config_of(request, name, None)


@router.get(
    "/v2/models/{name}/versions/{version}/config",
    summary="Open Inference Protocol: configuration of a version",
    response_class=Response,
    responses=MODEL_ERRORS,
)
async def get_version_config(request: Request, name: ModelName, version: ModelVersion) -> Response:
    """Same as for the model: all versions have the same inputs and outputs."""
    return await _config_of(request, name, version)


@router.post(
    "/v2/repository/index",
    summary="Open Inference Protocol: the models and their states",
    response_class=Response,
    responses={**_UNREACHABLE, **_INVALID},
    openapi_extra={"requestBody": {"content": {"application/json": {"schema": _INDEX}}}},
)
async def get_index(request: Request) -> Response:
    """Every version of each model that classifies images and that the API key may use.

    A model that is not loaded may have the version "".
    """
    context = request_context(request)
    ready = _lists_ready(await read_whole(Body(request, context), MAX_INDEX_BYTES, "max_index_bytes"))
    models = await _allowed_models(context)
    return _json(
        [
            {
                "name": info.name,
                "version": version,
                "state": "READY" if info.ready else "UNAVAILABLE",
                "reason": info.reason or "",
            }
            for info in models
            if info.ready or not ready
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


def _lists_ready(body: bytes) -> bool:
    """Whether a request for the index asks for models that are ready alone; raises InvalidBody or InvalidParameter."""
    if not body:
        return False
    try:
        given = json_text.decode(body, max_bytes=MAX_INDEX_BYTES)
    except json_text.JsonError as exc:
        raise InvalidBody(f"The body is not valid JSON: {exc}.") from None
    if not isinstance(given, dict):
        raise InvalidBody('The body is a JSON object, such as {"ready": true}.')
    ready = given.get("ready", False)
    if not isinstance(ready, bool):
        raise InvalidParameter("'ready': must be true or false.")
    return ready


async def _allowed_models(context: RequestContext) -> list[ModelInfo]:
    return [info for info in await context.service.backend.models() if context.caller.allows_model(info.name)]


async def _statistics_of(request: Request, name: str, version: str | None) -> Response:
    await model_info(request, name, version)
    return _json(await _statistics(request_context(request), name, version or ""))


async def _statistics(context: RequestContext, name: str, version: str) -> dict[str, Any]:
    message = pb.ModelStatisticsRequest(name=name, version=version)
    return as_document(pb.ModelStatisticsResponse.FromString(await call(context, "ModelStatistics", message)))


async def _config_of(request: Request, name: str, version: str | None) -> Response:
    info = await model_info(request, name, version)
    return _json(config_of(ModelMetadata.of(info), max_images=request_context(request).settings.max_files))


def config_of(model: ModelMetadata, max_images: int) -> dict[str, Any]:
    """The configuration of a model that classifies images.

    Its platform is not that of the metadata: tools look for the steps of an "ensemble", which the gateway does not
    serve.
    """
    tensors = {
        member: [{"name": each.name, "data_type": _DATA_TYPES[each.datatype], "dims": each.shape[1:]} for each in given]
        for member, given in (("input", model.inputs), ("output", model.outputs))
    }
    return {"name": model.name, "platform": NAME, "max_batch_size": max_images, **tensors}


def _json(document: object) -> Response:
    return Response(to_json(document), media_type="application/json")
