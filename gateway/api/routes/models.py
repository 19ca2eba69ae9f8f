"""/models: list and describe models; admins can load and unload them."""

from http import HTTPStatus

from fastapi import APIRouter, Request

from gateway.api.request_context import request_context
from gateway.api.schemas import ModelDetail, ModelsResponse, Problem, model_detail
from gateway.api.state import state
from gateway.errors import ModelInUse

router = APIRouter(tags=["models"])
admin_router = APIRouter(tags=["admin"])
"""Routes that need an admin key; they exist only if there are admin keys."""


@router.get("/models", summary="List the models", responses={503: {"model": Problem}})
async def list_models(request: Request) -> ModelsResponse:
    """List every model in Triton that classifies images, with its labels."""
    parts = state(request)
    models = await parts["service"].backend.models()
    return ModelsResponse(default=parts["settings"].model, models=[model_detail(info) for info in models])


@router.get("/models/{name}", summary="Describe a model", responses={404: {"model": Problem}, 503: {"model": Problem}})
async def get_model(request: Request, name: str) -> ModelDetail:
    """Describe one model, with its labels."""
    return model_detail(await state(request)["service"].backend.model(name))


@admin_router.post(
    "/models/{name}/load",
    summary="Load or reload a model",
    responses={404: {"model": Problem}, 502: {"model": Problem}, 503: {"model": Problem}},
)
async def load_model(request: Request, name: str) -> ModelDetail:
    """Load a model from the repository of every Triton, or reload it with new versions and changed files.

    No request fails meanwhile: the old versions serve until the new ones are ready.
    """
    backend = state(request)["service"].backend
    request_context(request).event["model"] = name
    await backend.load(name)
    return model_detail(await backend.model(name))


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
async def unload_model(request: Request, name: str) -> None:
    """Unload a model from every Triton; requests in flight are finished, later ones get 404."""
    parts = state(request)
    request_context(request).event["model"] = name
    if name == parts["settings"].model:
        raise ModelInUse(f"{name!r} is the default model and cannot be unloaded, because readiness depends on it.")
    await parts["service"].backend.unload(name)
