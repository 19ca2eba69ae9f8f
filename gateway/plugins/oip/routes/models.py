"""GET /v2 and below, and the index: descriptions of the server and its models, and Triton's extensions for tools.

The extensions of Triton: https://github.com/triton-inference-server/server/tree/main/docs/protocol. Nothing is changed
by them.
"""

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from pydantic import BaseModel, StrictBool, ValidationError
from pydantic_core import to_json
from starlette.responses import Response
from tritonclient.grpc import service_pb2 as pb

from gateway import __version__
from gateway.api.body import Body
from gateway.api.request_context import request_context
from gateway.api.route_table import Access, traits
from gateway.errors import InvalidBody, ModelNotFound
from gateway.inference.backend import ModelInfo
from gateway.ingest.json_text import JsonError, decode, invalid
from gateway.plugins.oip.documents import metadata_of
from gateway.values.validation import VERSION_PATTERN

router = APIRouter(include_in_schema=False)  # https://github.com/kserve/open-inference-protocol documents them

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

_TEXTS = frozenset({"name", "version", "type"})
"""Members of statistics that are texts."""
_DATA_TYPES = {"BYTES": "TYPE_STRING", "FP32": "TYPE_FP32"}


class IndexRequest(BaseModel):
    """Which models the index lists."""

    ready: StrictBool = False
    """Whether to list only models that are ready."""


@router.get("/v2")
async def server_metadata() -> Response:
    """Name and version of the gateway, and the protocol extensions that it supports."""
    return _json({"name": NAME, "version": __version__, "extensions": EXTENSIONS})


@router.get("/v2/health/live")
@traits(access=Access.OPEN, polled=True, direct=True)
async def server_live(_: Request) -> Response:
    """Always 200: the process responds."""
    return LIVE


@router.get("/v2/health/ready")
@traits(access=Access.OPEN, polled=True, direct=True)
async def server_ready(request: Request) -> Response:
    """200 while `/health/ready` is 200, else 400."""
    context = request_context(request)
    return _boolean(context.runtime.is_ready())


@router.post("/v2/repository/index")
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
        raise InvalidBody('The body must be a JSON object, such as {"ready": true}.') from exc
    return _json(
        [
            {
                "name": info.name,
                "version": version,
                "state": "READY" if info.ready else "UNAVAILABLE",
                "reason": info.reason or "",
            }
            for info in await context.service.backend.models()
            if context.caller.allows_model(info.name)
            if info.ready or not only_ready
            for version in info.versions or ("",)
        ]
    )


async def metadata(request: Request, name: str, version: str | None) -> Response:
    """One input, IMAGE: encoded images. Outputs: a score for each class, and for each image "ok" or an error code."""
    return _json(metadata_of(await _model_info(request, name, version)))


async def ready(request: Request, name: str, version: str | None) -> Response:
    """200 if the model is loaded; the default model is ready while `/health/ready` is 200."""
    context = request_context(request)
    info = await _model_info(request, name, version)
    # Triton reports a model as ready even if its process has died; for the default model, probes detect that.
    is_default = name == context.settings.model
    return _boolean(info.ready and (not is_default or context.runtime.is_ready()))


async def config(request: Request, name: str, version: str | None) -> Response:
    """The inputs and outputs as a ModelConfig of Triton; `max_batch_size` is the number of images of a request.

    Its platform is not that of the metadata: tools look for the steps of an "ensemble", which the gateway does not
    serve.
    """
    model = metadata_of(await _model_info(request, name, version))
    tensors = {
        member: [
            {"name": each["name"], "data_type": _DATA_TYPES[each["datatype"]], "dims": each["shape"][1:]}
            for each in model[f"{member}s"]
        ]
        for member in ("input", "output")
    }
    most = request_context(request).settings.max_files
    return _json({"name": name, "platform": NAME, "max_batch_size": most, **tensors})


async def statistics(request: Request, name: str, version: str | None) -> Response:
    """Triton's counts and durations for a model since it was loaded; with several Triton servers, of one of them."""
    await _model_info(request, name, version)
    answer = await request_context(request).service.backend.statistics(name, version or "")
    return _json(as_document(pb.ModelStatisticsResponse.FromString(answer)))


def _add(end: str, handler: Handler) -> None:
    """Add the route of a model and the route of a version; both have the same inputs and outputs."""

    @router.get(f"/v2/models/{{name}}{end}")
    async def of_model(request: Request, name: ModelName) -> Response:
        return await handler(request, name, None)

    @router.get(f"/v2/models/{{name}}/versions/{{version}}{end}")
    async def of_version(request: Request, name: ModelName, version: ModelVersion) -> Response:
        return await handler(request, name, version)


for _end, _handler in {"": metadata, "/ready": ready, "/config": config, "/stats": statistics}.items():
    _add(_end, _handler)


async def _model_info(request: Request, name: str, version: str | None) -> ModelInfo:
    """A model that classifies images; raises Forbidden, and ModelNotFound also for a version."""
    context = request_context(request)
    context.check_model(name)
    info = await context.service.backend.model(name)
    if version is not None and version not in info.versions:
        raise ModelNotFound(f"There is no version {version} of {name!r}; it has {', '.join(info.versions)}.")
    return info


def as_document(message: Message) -> dict[str, Any]:
    """Statistics in the form of Triton's JSON, which has numbers where protobuf's has texts for 64-bit integers."""
    found = MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    return {name: _with_numbers(value) for name, value in found.items()}


def _with_numbers(value: object) -> object:
    if isinstance(value, dict):
        return {name: each if name in _TEXTS else _with_numbers(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_with_numbers(each) for each in value]
    return int(value) if isinstance(value, str) else value


def _json(document: object) -> Response:
    return Response(to_json(document), media_type="application/json")


def _boolean(answer: bool) -> Response:  # noqa: FBT001  # the value of the response
    return Response(status_code=HTTPStatus.OK if answer else NOT_READY)
