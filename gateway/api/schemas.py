"""The response schemas, as the OpenAPI page shows them, and what it says of routes that take images."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Schema(BaseModel):
    """Base class of response schemas; members are always present unless documented otherwise."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True, protected_namespaces=())


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


class StreamedSummary(Schema):
    """The last line of a stream of results."""

    model: ModelOut
    summary: SummaryOut


class LoadTimesOut(Schema):
    """What it has cost requests that a model was not loaded: seconds from a load's begin to a successful probe."""

    loads: int
    """Loads by the process that answers, of which the last 100 are in the percentiles."""
    p50_seconds: float
    p99_seconds: float
    memory_bytes: int | None
    """Host memory of the loaded model, as recorded when it was added; null if it is unknown."""


class ModelDetail(Schema):
    """A model that requests can name."""

    name: str
    version: str
    """The version in use, for requests that do not name a version."""
    versions: list[str]
    """The versions that requests can name."""
    ready: bool
    reason: str | None
    """Why it is not ready."""
    loaded: bool
    """Whether a Triton has loaded it. With models on demand, a request for another one waits while it loads."""
    load_times: LoadTimesOut | None
    """Null unless models are loaded on demand and the process that answers has loaded it."""
    precision: str | None
    """Number format of the network: fp32, bf16 or fp16."""
    runtime: str | None
    """What runs the network: onnxruntime, torchscript, torch-export, openvino, libtorch, tensorrt or python."""
    multi_label: bool
    """Whether each class has an independent probability, so that an image can have several classes."""
    decode: str
    """How large JPEGs are decoded: exact, with the same pixels as in training, or fast."""
    tensor: str | None
    """The tensor from the preprocessor to the network: normalised fp32, or the pixels as uint8."""
    classes: int
    embedding_size: int
    """Length of the embeddings of `POST /embed`; 0 if the model has none."""
    vector_size: Annotated[int, Field(deprecated=True)]
    """The former name of `embedding_size`, until the next release."""
    input_height: int | None
    input_width: int | None
    resize_size: list[int]
    """Size that images are resized to: height and width, or the length of the shorter side; empty if unknown."""
    crop_size: list[int]
    """Size of the centre crop after that: height and width, or one length for both; empty if unknown."""
    steps: list[str]
    """The models that the ensemble runs, in order."""
    limitations: list[str]
    """What the model lacks of the gateway's contract, and what that costs; empty for a complete one."""
    after: str | None
    """What the step after the network does, such as `temperature 1.8` for calibrated scores; null if there is none."""
    labels: list[str]


class ModelsResponse(Schema):
    """The models that requests can name, and the default model."""

    default: str
    models: list[ModelDetail]
    feedback: bool
    """Whether `POST /feedback` takes the true labels of images."""


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
