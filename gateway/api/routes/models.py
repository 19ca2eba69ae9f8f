"""/models: list and describe models; admins can load and unload them, and choose the versions that answer."""

from asyncio import to_thread
from datetime import datetime
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Query, Request

from gateway.api.request_context import request_context
from gateway.api.route_table import Access, traits
from gateway.api.schemas import Problem, Schema
from gateway.errors import GatewayError, InvalidParameter, LoadFailed, ModelInUse, NotFound
from gateway.inference.backend import ModelInfo
from gateway.values.rollout import Rollout
from gateway.values.setting_values import listed
from gateway.values.variables import variable

router = APIRouter(tags=["models"])
admin_router = APIRouter(tags=["admin"])
"""Routes that need an admin key; they exist only if there are admin keys."""


class ModelDetail(Schema):
    """A model that requests can name."""

    name: str
    description: str | None
    """What it is, in a sentence, as `gateway model add --description` wrote it; null if that is not known."""
    version: str
    """The version in use: it answers requests that name no version, or most of them."""
    versions: list[str]
    """The versions that requests can name."""
    shares: dict[str, int]
    """The versions that answer requests which name none, each with its share of them."""
    shadow: dict[str, int]
    """The versions that classify a percentage of the images as well, after the answer."""
    since: datetime | None
    """When that was last changed; null if the model's record does not say."""
    by: str | None
    """Whose change it was: the name of an admin key, or of a user of the machine with the repository."""
    ready: bool
    reason: str | None
    """Why it is not ready."""
    loaded: bool
    """Whether a Triton has loaded it. With models on demand, a request for another one waits while it loads."""
    precision: str | None
    """Number format of the network: fp32, bf16 or fp16."""
    runtime: str | None
    """What runs the network: onnxruntime, torchscript, openvino, libtorch, tensorrt or python."""
    multi_label: bool
    """Whether each class has an independent probability, so that an image can have several classes."""
    decode: str
    """How large JPEGs are decoded: exact, with the same pixels as in training, or fast."""
    tensor: str | None
    """The tensor from the preprocessor to the network: normalised fp32, or the pixels as uint8."""
    classes: int
    embedding_size: int
    """Length of the embeddings of `POST /embed`; 0 if the model has none."""
    input_height: int | None
    input_width: int | None
    resize_size: list[int]
    """Size that images are resized to: height and width, or the length of the shorter side; empty if unknown."""
    crop_size: list[int]
    """Size of the centre crop after that: height and width, or one length for both; empty if unknown."""
    steps: list[str]
    """The models that the ensemble runs, in order."""
    limitations: list[str]
    """What the model lacks of the gateway's contract, and what that costs; empty for a complete one."""
    after: str | None
    """What the step after the network does, such as `temperature 1.8` for calibrated scores; null if there is none."""
    labels: list[str]


class ModelsResponse(Schema):
    """The models that requests can name, and the default model."""

    default: str
    models: list[ModelDetail]
    feedback: bool
    """Whether `POST /feedback` takes the true labels of images."""


@router.get("/models", summary="List the models", responses={503: {"model": Problem}})
async def list_models(request: Request) -> ModelsResponse:
    """List every model in Triton that classifies images and that the API key may use, with its labels."""
    context = request_context(request)
    models = [info for info in await context.service.backend.models() if context.caller.allows_model(info.name)]
    return ModelsResponse(
        default=context.settings.model,
        models=[_detail(info) for info in models],
        feedback=context.service.observers.take_feedback,
    )


@router.get("/models/{name}", summary="Describe a model", responses={404: {"model": Problem}, 503: {"model": Problem}})
async def get_model(request: Request, name: str) -> ModelDetail:
    """Describe one model, with its labels."""
    context = request_context(request)
    context.check_model(name)
    return _detail(await context.service.backend.model(name))


@admin_router.post(
    "/models/{name}/load",
    summary="Load or reload a model",
    responses={404: {"model": Problem}, 502: {"model": Problem}, 503: {"model": Problem}},
)
@traits(access=Access.ADMIN)
async def load_model(request: Request, name: str) -> ModelDetail:
    """Load a model from the repository of every Triton, or reload it with new versions and changed files.

    With models on demand, it is loaded where a request would load it.

    No request fails meanwhile: the old versions serve until the new ones are ready.
    """
    context = request_context(request)
    backend = context.service.backend
    context.log_fields["model"] = name
    await backend.load(name)
    return _detail(await backend.model(name))


@admin_router.post(
    "/models/{name}/use",
    summary="Choose the versions that answer",
    responses={404: {"model": Problem}, 422: {"model": Problem}, 502: {"model": Problem}, 503: {"model": Problem}},
)
@traits(access=Access.ADMIN)
async def use_versions(
    request: Request,
    name: str,
    versions: Annotated[str, Query(max_length=1_000, examples=["1=90,2=10"])],
    shadow: Annotated[str, Query(max_length=1_000, examples=["2=10"])] = "",
) -> ModelDetail:
    """Choose the version that answers, or several with shares, and shadow versions with percentages.

    It is recorded in the model repository, which the service must be able to write, and applies at once; other
    processes and gateways follow within 5 s.
    """
    context = request_context(request)
    backend, plugins = context.service.backend, context.shared["plugins"]
    context.log_fields["model"] = name
    try:
        rollout = Rollout.of(listed(versions), listed(shadow), by=context.log_fields.get("key", ""))
    except ValueError as exc:
        raise InvalidParameter(f"{exc}.") from None
    before = await to_thread(plugins.record_rollout, name, rollout)
    if before is None:
        raise NotFound("This service has no access to its model repository: run `gateway model use` where that is.")
    try:
        await backend.load(name)
        info = await backend.model(name)
        if info.rollout != rollout:
            raise LoadFailed(
                f"Triton has not loaded the new record: its repository is not {variable('model_repository')}."
            )
    except GatewayError:
        await to_thread(plugins.record_rollout, name, before)
        raise
    return _detail(info)


@admin_router.post(
    "/models/{name}/unload",
    summary="Unload a model",
    status_code=HTTPStatus.NO_CONTENT,
    responses={
        404: {"model": Problem},
        409: {"model": Problem, "description": "It is the default model."},
        502: {"model": Problem},
        503: {"model": Problem},
    },
)
@traits(access=Access.ADMIN)
async def unload_model(request: Request, name: str) -> None:
    """Unload a model from every Triton; requests in flight are finished, later ones get 404.

    With models on demand, a later request loads it again.
    """
    context = request_context(request)
    context.log_fields["model"] = name
    if name == context.settings.model:
        raise ModelInUse(f"{name!r} is the default model and cannot be unloaded, because readiness depends on it.")
    await context.service.backend.unload(name)


def _detail(info: ModelInfo) -> ModelDetail:
    rollout = info.rollout or Rollout({info.version: 100} if info.version else {})
    own = {"shares", "shadow", "since", "by"}
    fields = {name: getattr(info, name) for name in ModelDetail.model_fields.keys() - own}
    return ModelDetail(
        shares=rollout.shares, shadow=rollout.shadow, since=rollout.since, by=rollout.by or None, **fields
    )
