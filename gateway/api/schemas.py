"""The shapes of the answers, as the OpenAPI page shows them."""

from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal, TypedDict

from pydantic import BaseModel, ConfigDict, Field

from gateway.inference.backend import EndpointHealth, ModelHealth, ModelInfo, Trial
from gateway.inference.prediction import Predictions
from gateway.inference.query import Result


class Schema(BaseModel):
    """An answer; nothing in it is optional unless it says so."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True, protected_namespaces=())


class Shape(StrEnum):
    """What an answer looks like."""

    NATIVE = "native"
    HUGGINGFACE = "huggingface"
    KSERVE_V1 = "kserve-v1"
    TORCHSERVE = "torchserve"
    ROBOFLOW = "roboflow"


class PredictParameters(BaseModel):
    """What `POST /predict` can be asked; multipart fields of the same names, before the first file, say the same."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    top_k: Annotated[int | None, Field(ge=1)] = None
    """Predictions for each file, best first; the default and the largest value are settings."""
    threshold: Annotated[float | None, Field(ge=0, le=1, allow_inf_nan=False)] = None
    """Only classes with at least this score; 0.5 for a multi-label model, where `top_k` does not say otherwise."""
    labels: Annotated[list[str], Field(max_length=1_000)] = []
    """Only classes with these labels, with commas or repeated."""
    model: Annotated[str | None, Field(min_length=1, max_length=256)] = None
    """A model of `GET /models`; the default is a setting."""
    version: Annotated[str | None, Field(pattern=r"^[0-9]{1,18}$")] = None
    """A version of the model; without it the one in use answers."""
    timeout: Annotated[float | None, Field(gt=0, allow_inf_nan=False)] = None
    """Seconds that any one file may wait for its answer, from its last byte on."""
    format: Shape = Shape.NATIVE
    """The shape of the answer: this service's own, or one that clients of another know already."""


class PredictionOut(Schema):
    """One class and its probability."""

    label: str
    class_id: int
    score: float


class ErrorOut(Schema):
    """Why a file has no answer."""

    code: str
    """Stable name of the error; see the table of errors."""
    message: str


class ResultOut(Schema):
    """The answer for one file."""

    index: int
    """Position of the file in the request, from 0."""
    filename: str
    status: Literal["ok", "error"]
    width: int | None
    """Pixels across, upright; null where the header could not be read."""
    height: int | None
    """Pixels down, upright; null where the header could not be read."""
    predictions: list[PredictionOut]
    error: ErrorOut | None


class ModelOut(Schema):
    """The model that answered; `version` is null where none did."""

    name: str
    version: str | None


class SummaryOut(Schema):
    """How many files have an answer, and how many do not."""

    ok: int
    failed: int


class PredictResponse(Schema):
    """One result for each uploaded file, in order."""

    model: ModelOut
    results: list[ResultOut]
    summary: SummaryOut


class StreamedResult(ResultOut):
    """A line of a stream of results: with the model, which a client would otherwise learn at the end alone."""

    model: ModelOut


class StreamedSummary(Schema):
    """The last line of a stream of results."""

    model: ModelOut
    summary: SummaryOut


class ModelDetail(Schema):
    """A model that can be asked."""

    name: str
    version: str
    """The version in use: it answers who names none."""
    versions: list[str]
    """The versions that can be asked for."""
    ready: bool
    reason: str | None
    """Why it is not ready."""
    precision: str | None
    """What the network computes in: fp32, bf16 or fp16."""
    multi_label: bool
    """Whether each class has a probability of its own, so that several may be likely."""
    decode: str
    """How large JPEGs are decoded: exact, to the last pixel of the training's, or fast."""
    classes: int
    vector_size: int
    """How many numbers each vector of `POST /embed` has; 0 where the model gives none."""
    input_height: int | None
    input_width: int | None
    resize_size: list[int]
    """What a picture is resized to: height and width, or the length of its shorter side; empty where unknown."""
    crop_size: list[int]
    """What is then cut from its middle: height and width, or one length for both; empty where unknown."""
    steps: list[str]
    """The models that the ensemble runs, in order."""
    labels: list[str]


class ModelsResponse(Schema):
    """The models that can be asked, and the one that answers when a request names none."""

    default: str
    models: list[ModelDetail]


class LimitOut(Schema):
    """One limit: its value, and the code of what is beyond it."""

    name: str
    value: int | float
    unit: str
    code: str
    setting: str
    """The environment variable that sets it."""


class LimitsResponse(Schema):
    """What a request may bring, and how much the service takes at once."""

    limits: list[LimitOut]


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


class Problem(Schema):
    """An RFC 9457 problem document."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    request_id: str
    limit: str | None = None
    """The limit that was broken; see `GET /limits`."""
    value: float | None = None
    """That limit's value."""


def result_out(result: Result) -> dict[str, object]:
    """One result as `ResultOut` has it: plain data, since a thousand predictions as objects take five times as long."""
    error, known = result.error, Predictions.of(result.predictions)
    return {
        "index": result.index,
        "filename": result.filename,
        "status": "ok" if error is None else "error",
        "width": result.width,
        "height": result.height,
        "predictions": [
            {"label": label, "class_id": class_id, "score": score}
            for label, class_id, score in zip(known.labels, known.class_ids, known.scores, strict=True)
        ],
        "error": None if error is None else {"code": error.code, "message": error.message},
    }


def summarise(results: Iterable[Result]) -> SummaryOut:
    """How many of the results are answers, and how many errors."""
    failed = [result.error is not None for result in results]
    return SummaryOut(ok=failed.count(False), failed=failed.count(True))


def model_detail(info: ModelInfo) -> ModelDetail:
    """One model in the shape that clients see."""
    return ModelDetail(
        name=info.name,
        version=info.version,
        precision=info.precision,
        multi_label=info.multi_label,
        decode=info.decode,
        versions=list(info.versions),
        ready=info.ready,
        reason=info.reason,
        classes=info.classes,
        vector_size=info.vector_size,
        input_height=info.input_height,
        input_width=info.input_width,
        resize_size=list(info.resize_size),
        crop_size=list(info.crop_size),
        steps=list(info.steps),
        labels=list(info.labels),
    )


def models_out(endpoints: Iterable[EndpointHealth]) -> dict[str, bool]:
    """Which models answer somewhere."""
    ready: dict[str, bool] = {}
    for model in (model for health in endpoints for model in health.models):
        ready[model.name] = ready.get(model.name, False) or model.ready
    return ready


class _TrialOut(TypedDict):
    tried_at: datetime | None
    took_seconds: float | None
    error: ErrorOut | None


def _trial_out(trial: Trial | None) -> _TrialOut:
    """The members that a model and a Triton have of their last trial."""
    if trial is None:
        return {"tried_at": None, "took_seconds": None, "error": None}
    error = trial.error
    return {
        "tried_at": trial.at,
        "took_seconds": round(trial.seconds, 6),
        "error": ErrorOut(code=error.code, message=error.message) if error else None,
    }


def _model_health_out(health: ModelHealth) -> ModelHealthOut:
    return ModelHealthOut(name=health.name, ready=health.ready, **_trial_out(health.trial))


def endpoint_out(health: EndpointHealth) -> EndpointOut:
    """One Triton's health in the shape that clients see."""
    return EndpointOut(
        triton=health.address,
        ready=health.ready,
        **_trial_out(health.trial),
        models_not_ready=[
            ModelStateOut(name=model.name, version=model.version, state=model.state, reason=model.reason)
            for model in health.models_not_ready
        ],
        warnings=list(health.warnings),
        models=[_model_health_out(model) for model in health.models],
        healing=health.healing,
    )
