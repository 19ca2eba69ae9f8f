"""The response schemas, as the OpenAPI page shows them, and what it says of routes that take images."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict


class Schema(BaseModel):
    """Base class of response schemas; members are always present unless documented otherwise."""

    model_config = ConfigDict(frozen=True, from_attributes=True, use_attribute_docstrings=True, protected_namespaces=())


class PredictionOut(Schema):
    """One class and its score."""

    label: str
    class_id: int
    score: float


class ErrorOut(Schema):
    """Why a file or frame has no predictions."""

    code: str
    """Stable name of the error; see the table of errors."""
    message: str


class FrameOut(Schema):
    """The result of one frame of a file."""

    index: int
    """Position of the frame in the file, from 0."""
    time_s: float | None
    """Display time in seconds from the first frame; null if the file cannot be read from this frame on."""
    predictions: list[PredictionOut]
    error: ErrorOut | None


class ResultOut(Schema):
    """The result of one file."""

    index: int
    """Position of the file in the request, from 0."""
    filename: str
    status: Literal["ok", "error"]
    width: int | None
    """Pixels across, upright; null where the header could not be read."""
    height: int | None
    """Pixels down, upright; null where the header could not be read."""
    predictions: list[PredictionOut]
    """With `frames`, those of the first frame with predictions."""
    error: ErrorOut | None
    frames: list[FrameOut] = []
    """Present only with the parameter `frames`: a result for each frame, in order; a still image has one."""
    warning: Literal["damaged"] | None = None
    """Present only if the file is a damaged JPEG: some of the pixels that the model saw are wrong."""


class ModelOut(Schema):
    """The model that classified the images; `version` is null if no image was classified."""

    name: str
    version: str | None


class SummaryOut(Schema):
    """The number of files with predictions, and of files with an error."""

    ok: int
    failed: int


class PredictResponse(Schema):
    """One result for each uploaded file, in order."""

    model: ModelOut
    results: list[ResultOut]
    summary: SummaryOut


class Problem(Schema):
    """An RFC 9457 problem document."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    request_id: str
    limit: str | None = None
    """The limit that was exceeded; see `GET /limits`."""
    value: float | None = None
    """That limit's value."""


RAW_IMAGE = {"type": "string", "format": "binary", "description": "One raw image."}
REQUEST_BODY: dict[str, Any] = {
    "required": True,
    "content": {
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "description": "Files; parameters of the query may precede them as form fields.",
                "required": ["files"],
                "properties": {
                    "files": {
                        "type": "array",
                        "minItems": 1,
                        "items": {"type": "string", "format": "binary"},
                        "description": "The images; any field name is accepted if its part has a file name.",
                    }
                },
            }
        },
        "image/*": {"schema": RAW_IMAGE},
        "application/octet-stream": {"schema": RAW_IMAGE},
    },
}
"""The body is read as a stream, so FastAPI does not know its schema, which is declared here."""
FAULTS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": description}
    for status, description in {
        400: "The body is malformed.",
        403: "The API key may not use this model or path.",
        404: "There is no such model.",
        408: "The upload took too long.",
        413: "The request, or its only file, is too large.",
        415: "The body, or its only file, has an unsupported type.",
        422: "A parameter is invalid, or no file could be classified.",
        429: "The rate of the API key is exceeded; see Retry-After.",
        431: "Headers are too large.",
        502: "The inference server failed.",
        503: "Overloaded, or the model is not available; see Retry-After.",
        504: "The deadline passed.",
    }.items()
}
