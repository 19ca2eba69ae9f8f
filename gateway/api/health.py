"""Health and metrics, for probes and Prometheus."""

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from gateway import metrics
from gateway.api.schemas import ErrorOut, Live, Ready
from gateway.api.state import state

router = APIRouter()


@router.get("/health/live", summary="Is the process there?")
async def live() -> Live:
    """Always 200: the process answers. Restart it when this fails."""
    return Live()


@router.get(
    "/health/ready", summary="Can images be classified?", response_model=Ready, responses={503: {"model": Ready}}
)
async def ready(request: Request) -> Response:
    """200 while a real inference has lately gone through the default model, else 503: send no traffic then."""
    parts = state(request)
    readiness = parts["readiness"]
    trial = readiness.last
    error = trial.error if trial else None
    body = Ready(
        status="ready" if readiness.ready else "not ready",
        model=readiness.model_name,
        triton_url=parts["settings"].triton_url,
        tried_at=trial.at if trial else None,
        took_seconds=round(trial.seconds, 6) if trial else None,
        error=ErrorOut(code=error.code, message=error.message) if error else None,
    )
    return JSONResponse(body.model_dump(mode="json"), status_code=200 if readiness.ready else 503)


@router.get("/metrics", summary="Metrics for Prometheus", response_class=Response)
async def get_metrics() -> Response:
    """All workers' counters in Prometheus' text format."""
    return Response(metrics.exposition(), media_type=metrics.CONTENT_TYPE)
