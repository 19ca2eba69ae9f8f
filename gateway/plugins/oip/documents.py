"""The documents of the Open Inference Protocol: schemas by which requests are parsed, and descriptions of models.

They contain no images: `reader` extracts these from the stream, and `answer` writes the scores.
Unknown members are ignored, as by other servers.
"""

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    PlainValidator,
    SkipValidation,
    StrictBool,
    StrictStr,
)
from pydantic_core import to_json

from gateway.hooks import ErrorFormat
from gateway.inference.backend import ModelInfo

HEADER_LENGTH = "Inference-Header-Content-Length"
"""The header with the bytes of JSON at the start of a binary body."""
IMAGE = "IMAGE"
PREDICTION, STATUS, FEATURES = "PREDICTION", "STATUS", "FEATURES"
SEQUENCE_PREDICTION, SEQUENCE_FRAMES = "SEQUENCE_PREDICTION", "SEQUENCE_FRAMES"
OUTPUTS = (PREDICTION, STATUS, FEATURES, SEQUENCE_PREDICTION, SEQUENCE_FRAMES)
"""Only models with embeddings have FEATURES, and only requests of a sequence the last two."""
MAX_SEQUENCE_ID_CHARACTERS = 128
PLATFORM = "ensemble"
_MOST = 2**63 - 1
"""Largest number that is accepted; numbers in JSON may have thousands of digits."""

Whole = Annotated[int, Field(strict=True, ge=0, le=_MOST)]
TensorShape = Annotated[list[Whole], Field(min_length=1, max_length=2, strict=True)]


def _sequence_id(value: object) -> object:
    if isinstance(value, str) and len(value) <= MAX_SEQUENCE_ID_CHARACTERS:
        return value
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**64:
        return value
    raise ValueError(f"must be a whole number, or a text of at most {MAX_SEQUENCE_ID_CHARACTERS} characters")


SequenceId = Annotated[int | str, PlainValidator(_sequence_id)]


def _listed(outputs: object) -> object:
    return [] if outputs is None else outputs


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True, protected_namespaces=())


class _TensorParameters(_Document):
    shared_memory_region: object = None
    """Triton's extension for tensors in shared memory, which is refused."""

    @property
    def asks_for_shared_memory(self) -> bool:
        """Whether the tensor is in shared memory instead of the body."""
        return "shared_memory_region" in self.model_fields_set


class InferenceParameters(_Document):
    """Parameters of a whole request."""

    timeout: Whole = 0
    """Deadline for each image in microseconds, from its last byte on; 0 for the default."""
    binary_data_output: StrictBool = False
    """Whether outputs are returned as binary data unless they specify it themselves."""
    sequence_id: SequenceId = 0
    """The sequence that the images continue, in their order, as Triton's clients give it; 0 and "" for none."""
    sequence_start: StrictBool = False
    """Whether the sequence starts with the first image."""
    sequence_end: StrictBool = False
    """Whether the sequence ends with the last image."""


class InputParameters(_TensorParameters):
    """Parameters of an input."""

    binary_data_size: Whole | None = None
    """Bytes of the images after the JSON, instead of `data`."""


class ImageInput(_Document):
    """The input tensor; each element is an image."""

    name: Literal["IMAGE"]
    datatype: Literal["BYTES"]
    shape: TensorShape
    """[N] or [N, 1] for N images."""
    data: SkipValidation[object] = None
    """The images in base64."""
    parameters: InputParameters | None = None


class OutputParameters(_TensorParameters):
    """How an output is returned."""

    classification: Whole = 0
    """For PREDICTION and SEQUENCE_PREDICTION: the number of best classes to return, each as "score:class id:label"."""
    binary_data: StrictBool | None = None


class OutputRequest(_Document):
    """An output to return."""

    name: Literal["PREDICTION", "STATUS", "FEATURES", "SEQUENCE_PREDICTION", "SEQUENCE_FRAMES"]
    parameters: OutputParameters | None = None


class InferenceBody(_Document):
    """A request for inference."""

    id: Annotated[StrictStr, Field(max_length=1_024)] | None = None
    """Returned with the response."""
    parameters: InferenceParameters | None = None
    inputs: SkipValidation[Annotated[list[ImageInput], Field(min_length=1, max_length=1)]]
    outputs: Annotated[list[OutputRequest], Field(strict=True), FailFast(), BeforeValidator(_listed)] = []
    """The outputs to return; by default all that the model has."""


class V2Error(_Document):
    """Any error of a path under /v2."""

    error: str


V2_ERRORS = ErrorFormat("/v2", V2Error, lambda error: to_json({"error": error.message}))


def metadata_of(info: ModelInfo) -> dict[str, Any]:
    """A model with its inputs and outputs; -1 in a shape is any number, and the first dimension that of images."""
    outputs = [
        {"name": PREDICTION, "datatype": "FP32", "shape": [-1, info.classes]},
        {"name": STATUS, "datatype": "BYTES", "shape": [-1]},
    ]
    if info.embedding_size:
        outputs.append({"name": FEATURES, "datatype": "FP32", "shape": [-1, info.embedding_size]})
    return {
        "name": info.name,
        "versions": list(info.versions),
        "platform": PLATFORM,
        "inputs": [{"name": IMAGE, "datatype": "BYTES", "shape": [-1]}],
        "outputs": outputs,
    }
