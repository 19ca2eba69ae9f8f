"""What a request of the Open Inference Protocol says beside its images; see gateway.oip.reader."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeGuard

from gateway.errors import InvalidParameter

IMAGE = "IMAGE"
PREDICTION, STATUS, FEATURES = "PREDICTION", "STATUS", "FEATURES"
OUTPUTS = (PREDICTION, STATUS, FEATURES)
"""FEATURES is a model's that gives vectors."""
_TOLD_CHARACTERS = 80
_MOST = 2**63 - 1
"""JSON's numbers may have thousands of digits; nothing that is counted here has more than 64 bits."""


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
    given = members.get("id")
    if given is not None and not isinstance(given, str):
        raise InvalidParameter("'id': must be a string.")
    timeout = _parameters(members).get("timeout", 0)
    if not _is_whole(timeout):
        raise InvalidParameter("'timeout': must be a whole number of microseconds, 0 for the default.")
    return InferenceRequest(
        # A lone surrogate is valid JSON, but cannot be encoded.
        id=None if given is None else given.encode(errors="replace").decode(),
        timeout_microseconds=timeout,
        outputs=_requested_outputs(members, max_class_count),
        everything=members.get("outputs") in (None, []),
    )


def parse_input(members: Mapping[str, object] | None) -> InputTensor:
    """Read the one input, in which `data` stands for whatever its data was; raises InvalidParameter."""
    if members is None:
        raise InvalidParameter(f"'inputs': the input {IMAGE} is missing.")
    if members.get("name") != IMAGE:
        raise InvalidParameter(f"'inputs': unknown input {told(members.get('name'))}, only {IMAGE}.")
    if members.get("datatype") != "BYTES":
        raise InvalidParameter(f"'datatype': {IMAGE} is BYTES, not {told(members.get('datatype'))}.")
    shape = members.get("shape")
    if not isinstance(shape, list) or not shape or not _is_whole(shape[0]) or shape[1:] not in ([], [1]):
        raise InvalidParameter(f"'shape': {IMAGE} has the shape [N] or [N, 1] for N images, not {told(shape)}.")
    parameters = _parameters(members)
    _refuse_shared_memory(IMAGE, parameters)
    binary_bytes = parameters.get("binary_data_size")
    if ("data" in members) == (binary_bytes is not None):
        raise InvalidParameter(f"{IMAGE} needs data or binary_data_size, and not both.")
    if binary_bytes is not None and not _is_whole(binary_bytes):
        raise InvalidParameter("'binary_data_size': must be a whole number of bytes.")
    return InputTensor(shape[0], binary_bytes)


def told(value: object) -> str:
    """A value as an error may repeat it."""
    text = repr(value)
    return text if len(text) <= _TOLD_CHARACTERS else f"{text[:_TOLD_CHARACTERS]}…"


def _requested_outputs(members: Mapping[str, object], max_class_count: int) -> tuple[RequestedOutput, ...]:
    all_binary = _flag(_parameters(members), "binary_data_output", default=False)
    given = members.get("outputs")
    if given is None or given == []:
        return tuple(RequestedOutput(name, all_binary) for name in OUTPUTS)
    if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
        raise InvalidParameter("'outputs': must be an array of objects.")
    outputs = tuple(_requested_output(each, max_class_count, all_binary=all_binary) for each in given)
    if len({output.name for output in outputs}) < len(outputs):
        raise InvalidParameter("'outputs': an output is asked for twice.")
    return outputs


def _requested_output(members: Mapping[str, object], max_class_count: int, *, all_binary: bool) -> RequestedOutput:
    name, parameters = members.get("name"), _parameters(members)
    if not isinstance(name, str) or name not in OUTPUTS:
        raise InvalidParameter(f"'outputs': unknown output {told(name)}, only {', '.join(OUTPUTS)}.")
    _refuse_shared_memory(name, parameters)
    class_count = parameters.get("classification", 0)
    if not _is_whole(class_count):
        raise InvalidParameter("'classification': must be a whole number of classes, 0 for the scores.")
    if class_count and name != PREDICTION:
        raise InvalidParameter(f"'classification': {name} has no classes; {PREDICTION} has.")
    if class_count > max_class_count:
        raise InvalidParameter(
            f"'classification': must be at most {max_class_count}.", limit="max_top_k", value=max_class_count
        )
    return RequestedOutput(name, _flag(parameters, "binary_data", default=all_binary), class_count)


def _refuse_shared_memory(name: str, parameters: Mapping[str, object]) -> None:
    if "shared_memory_region" in parameters:
        raise InvalidParameter(f"{name}: shared memory is not supported; send tensors in the body.")


def _parameters(owner: Mapping[str, object]) -> Mapping[str, object]:
    parameters = owner.get("parameters")
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise InvalidParameter("'parameters': must be an object.")
    return parameters


def _flag(parameters: Mapping[str, object], name: str, *, default: bool) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise InvalidParameter(f"{name!r}: must be true or false.")
    return value


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST
