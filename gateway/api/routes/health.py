"""Health and metrics, for probes and Prometheus."""

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from gateway import metrics
from gateway.api.readiness import Live, Ready, endpoint_out, models_out
from gateway.api.request_context import request_context
from gateway.api.state import State, state

router = APIRouter(tags=["service"])


@router.get("/health/live", summary="Is the process alive?")
async def live() -> Live:
    """Always 200: the process responds. Restart it when this fails."""
    return Live()


@router.get(
    "/health/ready", summary="Can images be classified?", response_model=Ready, responses={503: {"model": Ready}}
)
async def get_ready(request: Request) -> Response:
    """200 while probes (inferences) of the default model succeed, else 503: send no traffic then.

    If API keys are required, only requests with a key get `models` and `endpoints`.
    """
    parts = state(request)
    health = parts["service"].backend.health()
    ready = any(each.ready for each in health) and not parts["draining"]
    details = health if request_context(request).shows_details else ()
    body = Ready(
        status="ready" if ready else "draining" if parts["draining"] else "not ready",
        model=parts["settings"].model,
        models=models_out(details),
        endpoints=[endpoint_out(each) for each in details],
    )
    return Response(body.model_dump_json(), 200 if ready else 503, media_type="application/json")


def is_ready(parts: State) -> bool:
    """Whether the last probe of the default model succeeded at any Triton, and the gateway is not stopping."""
    return any(health.ready for health in parts["service"].backend.health()) and not parts["draining"]


@router.get("/metrics", summary="Metrics for Prometheus", response_class=Response)
async def get_metrics() -> Response:
    """The metrics of all workers in Prometheus' text format."""
    # In a thread, since reading the shared files of several workers takes long.
    return Response(await run_in_threadpool(metrics.exposition), media_type=metrics.CONTENT_TYPE)
