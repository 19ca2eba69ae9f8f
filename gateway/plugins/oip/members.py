"""The members of an Open Inference Protocol request other than images, which `reader` extracts from the body.

Unknown members are ignored, as by other servers.
"""

from collections.abc import Mapping
from typing import Annotated, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    PlainValidator,
    StrictBool,
    StrictStr,
    ValidationError,
)
from pydantic_core import ErrorDetails

from gateway.errors import InvalidParameter
from gateway.inference.result import MAX_TOP_K
from gateway.plugins.oip.documents import IMAGE, OUTPUTS, PREDICTION, SEQUENCE_PREDICTION

MAX_SEQUENCE_ID_CHARACTERS = 128
_MOST = 2**63 - 1
"""Largest number that is accepted; numbers in JSON may have thousands of digits."""
_MAX_CHARACTERS = 80


def _sequence_id(value: object) -> object:
    if isinstance(value, str) and len(value) <= MAX_SEQUENCE_ID_CHARACTERS:
        return value
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**64:
        return value
    raise ValueError(f"must be a whole number, or a text of at most {MAX_SEQUENCE_ID_CHARACTERS} characters")


def _images_in_rows(shape: list[int]) -> list[int]:
    if shape[1:] not in ([], [1]):
        raise ValueError("must be [N] or [N, 1] for N images")
    return shape


def _or(default: object) -> BeforeValidator:
    """Read null as a default."""
    return BeforeValidator(lambda value: default if value is None else value)


Whole = Annotated[int, Field(strict=True, ge=0, le=_MOST)]
TensorShape = Annotated[list[Whole], Field(min_length=1, max_length=2, strict=True), AfterValidator(_images_in_rows)]
SequenceId = Annotated[int | str, PlainValidator(_sequence_id)]


class _Members(BaseModel):
    model_config = ConfigDict(frozen=True)


class _TensorParameters(_Members):
    shared_memory_region: None = None
    """Triton's extension for tensors in shared memory, which is refused."""


class InferenceParameters(_Members):
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


class ImageInput(_Members):
    """The input tensor, without its data; each element is an image."""

    name: Literal["IMAGE"]
    datatype: Literal["BYTES"]
    shape: TensorShape
    """[N] or [N, 1] for N images."""
    parameters: Annotated[InputParameters, _or({})] = InputParameters()


class OutputParameters(_TensorParameters):
    """How an output is returned."""

    classification: Whole = 0
    """For PREDICTION and SEQUENCE_PREDICTION: the number of best classes to return, each as "score:class id:label"."""
    binary_data: StrictBool | None = None


class Output(_Members):
    """An output to return."""

    name: Literal["PREDICTION", "STATUS", "FEATURES", "SEQUENCE_PREDICTION", "SEQUENCE_FRAMES"]
    parameters: Annotated[OutputParameters, _or({})] = OutputParameters()

    @property
    def class_count(self) -> int:
        """The number of best classes as text, 0 for all scores."""
        return self.parameters.classification


ALL_OUTPUTS = tuple(Output.model_validate({"name": name}) for name in OUTPUTS)


class InferenceRequest(_Members):
    """A request for inference, without its input."""

    id: Annotated[StrictStr, Field(max_length=1_024)] | None = None
    """Returned with the response."""
    parameters: Annotated[InferenceParameters, _or({})] = InferenceParameters()
    outputs: Annotated[list[Output], Field(strict=True), FailFast(), _or([])] = []
    """The outputs to return; with none, all that the model has."""

    def is_binary(self, output: Output) -> bool:
        """Whether an output is returned as binary data after the JSON, not in the JSON."""
        binary = output.parameters.binary_data
        return self.parameters.binary_data_output if binary is None else binary


D = TypeVar("D", ImageInput, InferenceRequest)


def parse_request(members: Mapping[str, object]) -> InferenceRequest:
    """Parse the members of the JSON object except `inputs`; raises InvalidParameter."""
    request = _read(InferenceRequest, members)
    for output in request.outputs:
        if output.class_count and output.name not in {PREDICTION, SEQUENCE_PREDICTION}:
            raise InvalidParameter(f"'classification': {output.name} has no classes; {PREDICTION} has.")
        if output.class_count > MAX_TOP_K:
            raise InvalidParameter(
                f"'classification': must be at most {MAX_TOP_K:,}.", limit="max_top_k", value=MAX_TOP_K
            )
    if len({output.name for output in request.outputs}) < len(request.outputs):
        raise InvalidParameter("'outputs': an output is listed twice.")
    return request


def parse_input(members: Mapping[str, object] | None) -> tuple[int, int | None]:
    """The number of images of the input, and their bytes after the JSON; None if `data` has them.

    `data` is a placeholder. Raises InvalidParameter.
    """
    if members is None:
        raise InvalidParameter(f"'inputs': the input {IMAGE} is missing.")
    tensor = _read(ImageInput, members)
    binary_bytes = tensor.parameters.binary_data_size
    if ("data" in members) == (binary_bytes is not None):
        raise InvalidParameter(f"{IMAGE} needs either data or binary_data_size, not both.")
    return tensor.shape[0], binary_bytes


def _read(document: type[D], members: Mapping[str, object]) -> D:
    """Validate the members; raises InvalidParameter for the first wrong one."""
    try:
        return document.model_validate(members)
    except ValidationError as exc:
        raise InvalidParameter(_sentence(exc.errors(include_url=False)[0])) from exc


def _sentence(error: ErrorDetails) -> str:
    member = next(part for part in reversed(error["loc"]) if isinstance(part, str))
    # For a missing member, pydantic's input is the whole object.
    value = repr(None if error["type"] == "missing" else error["input"])
    if len(value) > _MAX_CHARACTERS:
        value = f"{value[:_MAX_CHARACTERS]}…"
    fault = error["msg"].removeprefix("Value error, ")
    return f"'{member}': {fault[:1].lower()}{fault[1:]}, not {value}."
