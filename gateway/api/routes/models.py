"""/models: list and describe models; admins can load and unload them, and choose the versions that answer."""

from asyncio import to_thread
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


class ModelsResponse(Schema):
    """The models that requests can name, and the default model."""

    default: str
    models: list[ModelInfo]
    feedback: bool
    """Whether `POST /feedback` takes the true labels of images."""


@router.get("/models", summary="List the models", responses={503: {"model": Problem}})
async def list_models(request: Request) -> ModelsResponse:
    """List every model in Triton that classifies images and that the API key may use, with its labels."""
    context = request_context(request)
    return ModelsResponse(
        default=context.settings.model,
        models=[info for info in await context.service.backend.models() if context.caller.allows_model(info.name)],
        feedback=context.service.observers.take_feedback,
    )


@router.get("/models/{name}", summary="Describe a model", responses={404: {"model": Problem}, 503: {"model": Problem}})
async def get_model(request: Request, name: str) -> ModelInfo:
    """Describe one model, with its labels."""
    context = request_context(request)
    context.check_model(name)
    return await context.service.backend.model(name)


@admin_router.post(
    "/models/{name}/load",
    summary="Load or reload a model",
    responses={404: {"model": Problem}, 502: {"model": Problem}, 503: {"model": Problem}},
)
@traits(access=Access.ADMIN)
async def load_model(request: Request, name: str) -> ModelInfo:
    """Load a model from the repository of every Triton, or reload it with new versions and changed files.

    With models on demand, it is loaded where a request would load it.

    No request fails meanwhile: the old versions serve until the new ones are ready.
    """
    context = request_context(request)
    backend = context.service.backend
    context.log_fields["model"] = name
    await backend.load(name)
    return await backend.model(name)


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
) -> ModelInfo:
    """Choose the version that answers, or several with shares, and shadow versions with percentages.

    It is recorded in the model repository, which the service must be able to write, and applies at once; other
    processes and gateways follow within 5 s.
    """
    context = request_context(request)
    backend, plugins = context.service.backend, context.runtime.plugins
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
        if (info.shares, info.shadow, info.since) != (rollout.shares, rollout.shadow, rollout.since):
            raise LoadFailed(
                f"Triton has not loaded the new record: its repository is not {variable('model_repository')}."
            )
    except GatewayError:
        await to_thread(plugins.record_rollout, name, before)
        raise
    return info


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
