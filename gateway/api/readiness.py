"""The response schemas of GET /health/live and /health/ready."""

from collections.abc import Iterable
from datetime import datetime
from typing import Literal, TypedDict

from gateway.api.schemas import ErrorOut, Schema
from gateway.inference.backend import EndpointHealth, ModelHealth, ProbeResult


class Live(Schema):
    """The process responds."""

    status: Literal["live"] = "live"


class ModelStateOut(Schema):
    """A model that Triton reports as not ready."""

    name: str
    version: str
    state: str
    reason: str


class ModelHealthOut(Schema):
    """One model at one Triton, by Triton's name: each version has its own ensemble, such as flowers.v2."""

    name: str
    ready: bool
    tried_at: datetime | None
    took_seconds: float | None
    error: ErrorOut | None


class EndpointOut(Schema):
    """One Triton, and the result of its last probe: an inference that shows whether images can be classified."""

    triton: str
    ready: bool
    """Of the default model, like the members up to `error`."""
    tried_at: datetime | None
    """Time of the last probe; null before the first."""
    took_seconds: float | None
    error: ErrorOut | None
    """Why the probe failed; null if it succeeded."""
    models_not_ready: list[ModelStateOut]
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
    endpoints: list[EndpointOut]
    """Empty without a key if keys are required."""


def models_out(endpoints: Iterable[EndpointHealth]) -> dict[str, bool]:
    """Each model, and whether it responds at any Triton."""
    ready: dict[str, bool] = {}
    for model in (model for health in endpoints for model in health.models):
        ready[model.name] = ready.get(model.name, False) or model.ready
    return ready


class _ProbeOut(TypedDict):
    tried_at: datetime | None
    took_seconds: float | None
    error: ErrorOut | None


def _probe_out(probe: ProbeResult | None) -> _ProbeOut:
    """The members of a model or a Triton about its last probe."""
    if probe is None:
        return {"tried_at": None, "took_seconds": None, "error": None}
    error = probe.error
    return {
        "tried_at": probe.at,
        "took_seconds": round(probe.seconds, 6),
        "error": ErrorOut(code=error.code, message=error.message) if error else None,
    }


def _model_health_out(health: ModelHealth) -> ModelHealthOut:
    return ModelHealthOut(name=health.name, ready=health.ready, **_probe_out(health.last_probe))


def endpoint_out(health: EndpointHealth) -> EndpointOut:
    """Convert one Triton's health to its response schema."""
    return EndpointOut(
        triton=health.address,
        ready=health.ready,
        **_probe_out(health.last_probe),
        models_not_ready=[
            ModelStateOut(name=model.name, version=model.version, state=model.state, reason=model.reason)
            for model in health.models_not_ready
        ],
        warnings=list(health.warnings),
        models=[_model_health_out(model) for model in health.models],
        healing=health.healing,
    )
