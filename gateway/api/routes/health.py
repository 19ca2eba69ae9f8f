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
    """Always 200: the process answers. Restart it when this fails."""
    return Live()


@router.get(
    "/health/ready", summary="Can images be classified?", response_model=Ready, responses={503: {"model": Ready}}
)
async def get_ready(request: Request) -> Response:
    """200 while a real inference has lately gone through the default model, else 503: send no traffic then.

    Where API keys are on, `models` and `endpoints` are only shown to a request with a key.
    """
    parts = state(request)
    health = parts["service"].backend.health() if request_context(request).shows_details else ()
    ready = is_ready(parts)
    body = Ready(
        status="ready" if ready else "draining" if parts["draining"] else "not ready",
        model=parts["settings"].model,
        models=models_out(health),
        endpoints=[endpoint_out(each) for each in health],
    )
    return Response(body.model_dump_json(), 200 if ready else 503, media_type="application/json")


def is_ready(parts: State) -> bool:
    """Whether a real inference has lately gone through the default model somewhere, and the gateway is not stopping."""
    return any(health.ready for health in parts["service"].backend.health()) and not parts["draining"]


@router.get("/metrics", summary="Metrics for Prometheus", response_class=Response)
async def get_metrics() -> Response:
    """All workers' counters in Prometheus' text format."""
    # On a thread, since the shared files of several workers take a while to read.
    return Response(await run_in_threadpool(metrics.exposition), media_type=metrics.CONTENT_TYPE)
