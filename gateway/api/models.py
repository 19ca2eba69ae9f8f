"""GET /models: what can be asked."""

from fastapi import APIRouter, Request

from gateway.api.schemas import ModelDetail, ModelsResponse, Problem, model_detail
from gateway.api.state import state

router = APIRouter(tags=["models"])


@router.get("/models", summary="List the models", responses={503: {"model": Problem}})
async def list_models(request: Request) -> ModelsResponse:
    """Every model that Triton serves and that takes images, with its labels."""
    parts = state(request)
    models = await parts["service"].backend.models()
    return ModelsResponse(default=parts["settings"].model, models=[model_detail(info) for info in models])


@router.get("/models/{name}", summary="Describe a model", responses={404: {"model": Problem}, 503: {"model": Problem}})
async def get_model(request: Request, name: str) -> ModelDetail:
    """One model, with its labels."""
    return model_detail(await state(request)["service"].backend.model(name))
