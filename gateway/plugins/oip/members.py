"""The members of an Open Inference Protocol request other than images; see gateway.plugins.oip.reader."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gateway.errors import InvalidParameter
from gateway.plugins.oip.documents import (
    IMAGE,
    OUTPUTS,
    PREDICTION,
    SEQUENCE_PREDICTION,
    ImageInput,
    InferenceBody,
    InferenceParameters,
    OutputRequest,
)
from gateway.plugins.oip.sequences import ClientSequence

_MAX_CHARACTERS = 80
_INPUT_SENTENCES = {
    "name": f"'inputs': unknown input {{}}, only {IMAGE}.",
    "datatype": f"'datatype': {IMAGE} is BYTES, not {{}}.",
    "shape": f"'shape': {IMAGE} has the shape [N] or [N, 1] for N images, not {{}}.",
}
_OUTPUT_SENTENCES = {"name": f"'outputs': unknown output {{}}, only {', '.join(OUTPUTS)}."}

D = TypeVar("D", ImageInput, InferenceBody)


@dataclass(frozen=True, slots=True)
class RequestedOutput:
    """A requested output, as binary data after the JSON if `binary`, else in the JSON.

    `class_count`, of the classification extension: the number of best classes per image as text, 0 for all scores.
    """

    name: str
    binary: bool
    class_count: int = 0


@dataclass(frozen=True, slots=True)
class InferenceRequest:
    """The parsed members of a request; `timeout_microseconds` is 0 for the default.

    `everything`: the request names no outputs, and gets all that the model has, which may be fewer than `outputs`.
    """

    id: str | None
    timeout_microseconds: int
    outputs: tuple[RequestedOutput, ...]
    everything: bool = False
    sequence: ClientSequence | None = None


@dataclass(frozen=True, slots=True)
class InputTensor:
    """The input IMAGE: the number of images, and their bytes after the JSON (None: they are in the JSON)."""

    images: int
    binary_bytes: int | None


def parse_request(members: Mapping[str, object], *, max_class_count: int) -> InferenceRequest:
    """Parse the members of the JSON object except `inputs`; raises InvalidParameter."""
    body = _read(InferenceBody, {**members, "inputs": None}, _OUTPUT_SENTENCES)
    parameters = body.parameters
    all_binary = parameters is not None and parameters.binary_data_output
    outputs = tuple(_requested(each, max_class_count, all_binary=all_binary) for each in body.outputs)
    sequence = None if parameters is None else _sequence(parameters)
    if len({output.name for output in outputs}) < len(outputs):
        raise InvalidParameter("'outputs': an output is listed twice.")
    return InferenceRequest(
        id=body.id,
        timeout_microseconds=0 if parameters is None else parameters.timeout,
        outputs=outputs or tuple(RequestedOutput(name, all_binary) for name in OUTPUTS),
        everything=not outputs,
        sequence=sequence,
    )


def _sequence(parameters: InferenceParameters) -> ClientSequence | None:
    if not parameters.sequence_id:
        return None
    return ClientSequence(parameters.sequence_id, parameters.sequence_start, parameters.sequence_end)


def parse_input(members: Mapping[str, object] | None) -> InputTensor:
    """Parse the input, whose `data` is a placeholder; raises InvalidParameter."""
    if members is None:
        raise InvalidParameter(f"'inputs': the input {IMAGE} is missing.")
    tensor = _read(ImageInput, members, _INPUT_SENTENCES)
    if tensor.shape[1:] not in ([], [1]):
        raise InvalidParameter(_INPUT_SENTENCES["shape"].format(shortened(tensor.shape)))
    if tensor.parameters is not None and tensor.parameters.asks_for_shared_memory:
        raise _no_shared_memory(IMAGE)
    binary_bytes = None if tensor.parameters is None else tensor.parameters.binary_data_size
    if ("data" in members) == (binary_bytes is not None):
        raise InvalidParameter(f"{IMAGE} needs either data or binary_data_size, not both.")
    return InputTensor(tensor.shape[0], binary_bytes)


def shortened(value: object) -> str:
    """A value for an error message, shortened."""
    text = repr(value)
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}…"


def _requested(output: OutputRequest, max_class_count: int, *, all_binary: bool) -> RequestedOutput:
    parameters = output.parameters
    if parameters is None:
        return RequestedOutput(output.name, all_binary)
    if parameters.asks_for_shared_memory:
        raise _no_shared_memory(output.name)
    if parameters.classification and output.name not in {PREDICTION, SEQUENCE_PREDICTION}:
        raise InvalidParameter(f"'classification': {output.name} has no classes; {PREDICTION} has.")
    if parameters.classification > max_class_count:
        raise InvalidParameter(
            f"'classification': must be at most {max_class_count:,}.", limit="max_top_k", value=max_class_count
        )
    binary = all_binary if parameters.binary_data is None else parameters.binary_data
    return RequestedOutput(output.name, binary, parameters.classification)


def _no_shared_memory(name: str) -> InvalidParameter:
    return InvalidParameter(f"{name}: shared memory is not supported; send tensors in the body.")


def _read(document: type[D], members: Mapping[str, object], sentences: Mapping[str, str]) -> D:
    """Validate the members; raises InvalidParameter for the first wrong one."""
    try:
        return document.model_validate(members)
    except ValidationError as exc:
        raise InvalidParameter(_sentence(exc.errors(include_url=False)[0], sentences)) from exc


def _sentence(error: ErrorDetails, sentences: Mapping[str, str]) -> str:
    member = next(part for part in reversed(error["loc"]) if isinstance(part, str))
    # For a missing member, pydantic's input is the whole object.
    value = shortened(None if error["type"] == "missing" else error["input"])
    if member in sentences:
        return sentences[member].format(value)
    fault = error["msg"].removeprefix("Value error, ")
    return f"'{member}': {fault[:1].lower()}{fault[1:]}, not {value}."
