"""The shapes of the answers, as the OpenAPI page shows them."""

from collections.abc import Iterable
from typing import Literal

from pydantic import BaseModel, ConfigDict

from gateway.errors import GatewayError
from gateway.inference.backend import ModelInfo
from gateway.inference.prediction import Prediction, Predictions
from gateway.inference.request_spec import Result


class Schema(BaseModel):
    """An answer; nothing in it is optional unless it says so."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True, protected_namespaces=())


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


class FrameOut(Schema):
    """The answer for one frame of a file."""

    index: int
    """Position of the frame in the file, from 0."""
    time_s: float | None
    """When it is shown, in seconds from the first one; null where nothing could be read from this frame on."""
    predictions: list[PredictionOut]
    error: ErrorOut | None


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
    """With `frames`, those of the first frame that has any."""
    error: ErrorOut | None
    frames: list[FrameOut] = []
    """Only with the parameter `frames`, and only there: an answer for each frame, in order; a still picture has one."""


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
    tensor: str | None
    """What passes from the preprocessor to the network: normalised fp32, or the pixels as uint8."""
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
    setting: str | None
    """The environment variable that sets it; null for a limit that is fixed."""


class LimitsResponse(Schema):
    """What a request may bring, and how much the service takes at once."""

    limits: list[LimitOut]


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
    out: dict[str, object] = {
        "index": result.index,
        "filename": result.filename,
        "status": "ok" if result.error is None else "error",
        "width": result.width,
        "height": result.height,
        "predictions": _predictions_out(result.predictions),
        "error": _error_out(result.error),
    }
    if result.frames is not None:
        out["frames"] = [
            {
                "index": frame.index,
                "time_s": None if frame.seconds is None else round(frame.seconds, 3),
                "predictions": _predictions_out(frame.predictions),
                "error": _error_out(frame.error),
            }
            for frame in result.frames
        ]
    return out


def _predictions_out(predictions: Iterable[Prediction]) -> list[dict[str, object]]:
    known = Predictions.of(predictions)
    return [
        {"label": label, "class_id": class_id, "score": score}
        for label, class_id, score in zip(known.labels, known.class_ids, known.scores, strict=True)
    ]


def _error_out(error: GatewayError | None) -> dict[str, str] | None:
    return None if error is None else {"code": error.code, "message": error.message}


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
        tensor=info.tensor,
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
