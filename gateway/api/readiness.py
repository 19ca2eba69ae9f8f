"""The documents of GET /health/live and /health/ready."""

from collections.abc import Iterable
from datetime import datetime
from typing import Literal, TypedDict

from gateway.api.schemas import ErrorOut, Schema
from gateway.inference.backend import EndpointHealth, ModelHealth, ProbeResult


class Live(Schema):
    """The process answers."""

    status: Literal["live"] = "live"


class ModelStateOut(Schema):
    """A model that Triton says is not ready."""

    name: str
    version: str
    state: str
    reason: str


class ModelHealthOut(Schema):
    """One model at one Triton, by Triton's name of it: a version has an ensemble of its own, such as flowers.v2."""

    name: str
    ready: bool
    tried_at: datetime | None
    took_seconds: float | None
    error: ErrorOut | None


class EndpointOut(Schema):
    """One Triton, and what was last tried there to find out whether images can be classified."""

    triton: str
    ready: bool
    """Of the default model, as the members up to `error`."""
    tried_at: datetime | None
    """When the last inference was tried; null before the first."""
    took_seconds: float | None
    error: ErrorOut | None
    """Why it failed."""
    models_not_ready: list[ModelStateOut]
    warnings: list[str]
    models: list[ModelHealthOut]
    healing: str
    """What is done about a model whose process died."""


class Ready(Schema):
    """Whether images can be classified: the default model answered a real inference lately, somewhere."""

    status: Literal["ready", "not ready", "draining"]
    model: str
    """The model that the inference goes through."""
    models: dict[str, bool]
    """Each model that is watched, and whether it answers at any Triton; empty without a key where keys are on."""
    endpoints: list[EndpointOut]
    """Empty without a key where keys are on."""


def models_out(endpoints: Iterable[EndpointHealth]) -> dict[str, bool]:
    """Which models answer somewhere."""
    ready: dict[str, bool] = {}
    for model in (model for health in endpoints for model in health.models):
        ready[model.name] = ready.get(model.name, False) or model.ready
    return ready


class _ProbeOut(TypedDict):
    tried_at: datetime | None
    took_seconds: float | None
    error: ErrorOut | None


def _probe_out(probe: ProbeResult | None) -> _ProbeOut:
    """The members that a model and a Triton have of their last probe."""
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
    """One Triton's health in the shape that clients see."""
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
