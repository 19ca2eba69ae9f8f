"""Health and metrics, for probes and Prometheus."""

from datetime import datetime
from typing import Literal

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from gateway import metrics
from gateway.api.request_context import request_context
from gateway.api.route_table import Access, traits
from gateway.api.schemas import ErrorOut, Schema
from gateway.inference.backend import ModelState
from gateway.settings import Settings

router = APIRouter(tags=["service"])


class Live(Schema):
    """The process responds."""

    status: Literal["live"] = "live"


class ModelHealthOut(Schema):
    """One model at one Triton, by Triton's name: each version has its own ensemble, such as flowers.v2."""

    name: str
    ready: bool
    tried_at: datetime | None
    took_seconds: float | None
    error: ErrorOut | None
    sizes: list[str]
    """The instances of each step, and where their number comes from: its configuration, or the machine."""


class EndpointOut(Schema):
    """One Triton, and the result of its last probe: an inference that shows whether images can be classified."""

    triton: str
    ready: bool
    """Whether the default model answered; the members up to `error` describe that probe."""
    tried_at: datetime | None
    """Time of the last probe; null before the first."""
    took_seconds: float | None
    error: ErrorOut | None
    """Why the probe failed; null if it succeeded."""
    models_not_ready: list[ModelState]
    warnings: list[str]
    models: list[ModelHealthOut]
    healing: str
    """The state of the recovery of a model whose process died."""


class Ready(Schema):
    """Whether images can be classified: the last probe of the default model succeeded at one Triton at least."""

    status: Literal["ready", "not ready", "draining"]
    model: str
    """The default model, which is probed."""
    models: dict[str, bool]
    """Each probed model, and whether it responds at any Triton; empty without a key if keys are required."""
    sizes: list[str]
    """The gateway's processes and limits; empty without a key if keys are required."""
    endpoints: list[EndpointOut]
    """Empty without a key if keys are required."""


METRICS_PATH = "/metrics"
LIVE = Response(Live().model_dump_json(), media_type="application/json")


@router.get("/health/live", summary="Is the process alive?", response_model=Live)
@traits(access=Access.OPEN, polled=True, direct=True)
async def live(_: Request) -> Response:
    """Always 200: the process responds. Restart it when this fails."""
    return LIVE


@router.get(
    "/health/ready", summary="Can images be classified?", response_model=Ready, responses={503: {"model": Ready}}
)
@traits(access=Access.OPEN, polled=True, direct=True)
async def get_ready(request: Request) -> Response:
    """200 while probes (inferences) of the default model succeed, else 503: send no traffic then.

    If API keys are required, only requests with a key get `models` and `endpoints`.
    """
    context = request_context(request)
    ready = context.runtime.is_ready()
    shown = context.service.backend.health() if context.shows_details else ()
    models = [model for each in shown for model in each.models]
    answering = {model.name for model in models if model.ready}
    body = Ready(
        status="ready" if ready else "draining" if context.runtime.draining.begun else "not ready",
        model=context.settings.model,
        models={model.name: model.name in answering for model in models},
        sizes=[_sizes(context.settings)] if shown else [],
        endpoints=[EndpointOut.model_validate(each) for each in shown],
    )
    return Response(body.model_dump_json(), 200 if ready else 503, media_type="application/json")


@router.get(METRICS_PATH, summary="Metrics for Prometheus", response_class=Response)
@traits(access=Access.OPEN, polled=True)
async def get_metrics() -> Response:
    """The metrics of all workers in Prometheus' text format."""
    # In a thread, since reading the shared files of several workers takes long.
    return Response(await run_in_threadpool(metrics.exposition), media_type=metrics.CONTENT_TYPE)


def _sizes(settings: Settings) -> str:
    return (
        f"gateway: {settings.workers} process{'es' * (settings.workers > 1)}, each with up to "
        f"{settings.max_images_in_flight} images in Triton and {settings.max_images_waiting} waiting"
    )
