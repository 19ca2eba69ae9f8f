"""What a request of the Open Inference Protocol says beside its images; see gateway.oip.reader."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gateway.errors import InvalidParameter
from gateway.oip.documents import IMAGE, OUTPUTS, PREDICTION, ImageInput, InferenceBody, OutputRequest

_TOLD_CHARACTERS = 80
_SENTENCES = {
    "id": "'id': must be a string.",
    "timeout": "'timeout': must be a whole number of microseconds, 0 for the default.",
    "binary_data_output": "'binary_data_output': must be true or false.",
    "binary_data": "'binary_data': must be true or false.",
    "binary_data_size": "'binary_data_size': must be a whole number of bytes.",
    "classification": "'classification': must be a whole number of classes, 0 for the scores.",
    "parameters": "'parameters': must be an object.",
    "outputs": "'outputs': must be an array of objects.",
}
_INPUT_SENTENCES = {
    "name": f"'inputs': unknown input {{}}, only {IMAGE}.",
    "datatype": f"'datatype': {IMAGE} is BYTES, not {{}}.",
    "shape": f"'shape': {IMAGE} has the shape [N] or [N, 1] for N images, not {{}}.",
}
_OUTPUT_SENTENCES = {"name": f"'outputs': unknown output {{}}, only {', '.join(OUTPUTS)}."}

D = TypeVar("D", ImageInput, InferenceBody)


@dataclass(frozen=True, slots=True)
class RequestedOutput:
    """An output that the answer is to have; `binary` behind the JSON, else in it.

    `class_count` is the classification extension's: the best classes of each image as text, 0 for the scores of all.
    """

    name: str
    binary: bool
    class_count: int = 0


@dataclass(frozen=True, slots=True)
class InferenceRequest:
    """What a request says of its answer; `timeout_microseconds` 0 for the default.

    `everything`: it names no outputs, and gets those that there are, which may be fewer than `outputs`.
    """

    id: str | None
    timeout_microseconds: int
    outputs: tuple[RequestedOutput, ...]
    everything: bool = False


@dataclass(frozen=True, slots=True)
class InputTensor:
    """The input IMAGE: how many images, and the bytes that they have behind the JSON (None: they are in it)."""

    images: int
    binary_bytes: int | None


def parse_request(members: Mapping[str, object], *, max_class_count: int) -> InferenceRequest:
    """Read the members of the JSON object but for its inputs; raises InvalidParameter."""
    body = _read(InferenceBody, {**members, "inputs": None}, _OUTPUT_SENTENCES)
    said = body.parameters
    all_binary = said is not None and said.binary_data_output
    outputs = tuple(_requested(each, max_class_count, all_binary=all_binary) for each in body.outputs)
    if len({output.name for output in outputs}) < len(outputs):
        raise InvalidParameter("'outputs': an output is listed twice.")
    return InferenceRequest(
        id=body.id,
        timeout_microseconds=0 if said is None else said.timeout,
        outputs=outputs or tuple(RequestedOutput(name, all_binary) for name in OUTPUTS),
        everything=not outputs,
    )


def parse_input(members: Mapping[str, object] | None) -> InputTensor:
    """Read the one input, in which `data` stands for whatever its data was; raises InvalidParameter."""
    if members is None:
        raise InvalidParameter(f"'inputs': the input {IMAGE} is missing.")
    tensor = _read(ImageInput, members, _INPUT_SENTENCES)
    if tensor.shape[1:] not in ([], [1]):
        raise InvalidParameter(_INPUT_SENTENCES["shape"].format(told(tensor.shape)))
    if tensor.parameters is not None and tensor.parameters.asks_for_shared_memory:
        raise _no_shared_memory(IMAGE)
    binary_bytes = None if tensor.parameters is None else tensor.parameters.binary_data_size
    if ("data" in members) == (binary_bytes is not None):
        raise InvalidParameter(f"{IMAGE} needs either data or binary_data_size, not both.")
    return InputTensor(tensor.shape[0], binary_bytes)


def told(value: object) -> str:
    """A value as an error may repeat it."""
    text = repr(value)
    return text if len(text) <= _TOLD_CHARACTERS else f"{text[:_TOLD_CHARACTERS]}…"


def _requested(output: OutputRequest, max_class_count: int, *, all_binary: bool) -> RequestedOutput:
    asked = output.parameters
    if asked is None:
        return RequestedOutput(output.name, all_binary)
    if asked.asks_for_shared_memory:
        raise _no_shared_memory(output.name)
    if asked.classification and output.name != PREDICTION:
        raise InvalidParameter(f"'classification': {output.name} has no classes; {PREDICTION} has.")
    if asked.classification > max_class_count:
        raise InvalidParameter(
            f"'classification': must be at most {max_class_count}.", limit="max_top_k", value=max_class_count
        )
    binary = all_binary if asked.binary_data is None else asked.binary_data
    return RequestedOutput(output.name, binary, asked.classification)


def _no_shared_memory(name: str) -> InvalidParameter:
    return InvalidParameter(f"{name}: shared memory is not supported; send tensors in the body.")


def _read(document: type[D], members: Mapping[str, object], sentences: Mapping[str, str]) -> D:
    """The members as a document; raises InvalidParameter with the sentence for the first that is wrong."""
    try:
        return document.model_validate(members)
    except ValidationError as exc:
        raise InvalidParameter(_sentence(exc.errors(include_url=False)[0], {**_SENTENCES, **sentences})) from exc


def _sentence(error: ErrorDetails, sentences: Mapping[str, str]) -> str:
    member = next(part for part in reversed(error["loc"]) if isinstance(part, str))
    # Of what is missing, pydantic has the whole of what lacks it.
    return sentences[member].format(told(None if error["type"] == "missing" else error["input"]))
