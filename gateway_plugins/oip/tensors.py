"""Tensors that pass through to Triton: requests in JSON and binary data as gRPC messages, and answers back."""

import asyncio
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import numpy as np
from pydantic_core import to_json
from tritonclient.grpc import service_pb2 as pb

from gateway.errors import InvalidBody, InvalidParameter, RequestTooLarge
from gateway.time_slices import TimeSlice
from gateway_plugins.shared import json_text

MAX_JSON_BYTES = 2**20
"""Most bytes of JSON in a request, which take up to 0.3 s to decode. Larger tensors are sent as binary data."""
INLINE_JSON_BYTES = 16 * 1024
"""Larger JSON is decoded in a thread, since that takes longer than a time slice."""
VALUES_AT_ONCE = 20_000
"""Values of an output that are written as JSON between two checks of the time slice."""
TYPES = {
    "BOOL": "?",
    "UINT8": "u1",
    "UINT16": "<u2",
    "UINT32": "<u4",
    "UINT64": "<u8",
    "INT8": "i1",
    "INT16": "<i2",
    "INT32": "<i4",
    "INT64": "<i8",
    "FP32": "<f4",
    "FP64": "<f8",
}
"""Types whose values can be in JSON, as numpy has them; FP16 and BF16 are binary data only."""
TEXTS = "BYTES"


@dataclass(frozen=True, slots=True)
class TensorRequest:
    """A parsed request: Triton's message without the model, and how its outputs are returned."""

    message: pb.ModelInferRequest
    timeout_microseconds: int
    """0 for the default."""
    binary: Mapping[str, bool]
    """Which of the requested outputs are binary data."""
    all_binary: bool
    """Whether the others are."""


async def read(body: bytes, header_bytes: int | None) -> TensorRequest:
    """Parse a body without a long pause of the event loop; see `parse`."""
    if (len(body) if header_bytes is None else header_bytes) > INLINE_JSON_BYTES:
        return await asyncio.to_thread(parse, body, header_bytes)
    return parse(body, header_bytes)


def parse(body: bytes, header_bytes: int | None) -> TensorRequest:
    """Parse a body whose first `header_bytes` are JSON, or all of them; raises InvalidBody and InvalidParameter."""
    if header_bytes is not None and header_bytes > len(body):
        raise InvalidBody("The body ends before the JSON does.")
    end = len(body) if header_bytes is None else header_bytes
    if end > MAX_JSON_BYTES:
        raise RequestTooLarge(
            f"The JSON may have {MAX_JSON_BYTES:,} bytes: send tensors as binary data.",
            limit="max_json_bytes",
            value=MAX_JSON_BYTES,
        )
    try:
        members = _object(json_text.decode(body[:end], max_bytes=MAX_JSON_BYTES), "the body")
    except json_text.JsonError as exc:
        raise InvalidBody(f"The body is not valid JSON: {exc}.") from exc
    message = pb.ModelInferRequest(id=_text(members.get("id", ""), "id"))
    parameters = dict(_object(members.get("parameters", {}), "parameters"))
    timeout = parameters.pop("timeout", 0)
    if not isinstance(timeout, int) or isinstance(timeout, bool) or not 0 <= timeout < 2**63:
        raise InvalidParameter("'timeout': must be a whole number of microseconds, 0 for the default.")
    all_binary = parameters.pop("binary_data_output", False) is True
    _set(message.parameters, parameters)
    position = end
    for entry in _list(members.get("inputs"), "inputs"):
        position = _add_input(message, _object(entry, "an input"), body, position)
    if position != len(body):
        raise InvalidBody("The body has more bytes than its inputs.")
    binary = {}
    for entry in _list(members.get("outputs", []), "outputs"):
        output = _object(entry, "an output")
        name, given = _text(output.get("name"), "name"), dict(_object(output.get("parameters", {}), "parameters"))
        binary[name] = given.pop("binary_data", all_binary) is True
        _set(message.outputs.add(name=name).parameters, given)
    return TensorRequest(message, timeout, binary, all_binary)


def _add_input(message: pb.ModelInferRequest, given: Mapping[str, object], body: bytes, position: int) -> int:
    """Add an input; returns the position in the body after its binary data."""
    name, datatype = _text(given.get("name"), "name"), _text(given.get("datatype"), "datatype")
    shape = [_size(side, name) for side in _list(given.get("shape"), "shape")]
    parameters = dict(_object(given.get("parameters", {}), "parameters"))
    size = parameters.pop("binary_data_size", None)
    _set(message.inputs.add(name=name, datatype=datatype, shape=shape).parameters, parameters)
    if size is None:
        message.raw_input_contents.append(_from_json(given.get("data"), datatype, shape, name))
        return position
    end = position + _size(size, name)
    if "data" in given or end > len(body):
        raise InvalidParameter(f"{name}: needs either data or as many bytes after the JSON as binary_data_size says.")
    message.raw_input_contents.append(body[position:end])
    return end


def _from_json(data: object, datatype: str, shape: list[int], name: str) -> bytes:
    values, types = _flat(_list(data, f"data of {name}"), name)
    if len(values) != math.prod(shape):
        raise InvalidParameter(f"{name}: data has {len(values)} values, and shape {shape} has {math.prod(shape)}.")
    if datatype == TEXTS:
        texts = [_text(value, f"a value of {name}").encode() for value in values]
        return b"".join(part for text in texts for part in (len(text).to_bytes(4, "little"), text))
    if datatype not in TYPES:
        raise InvalidParameter(f"{name}: {datatype} must be binary data; in JSON are {', '.join((*TYPES, TEXTS))}.")
    if not types <= ({bool} if datatype == "BOOL" else {int, float} if datatype.startswith("FP") else {int}):
        raise InvalidParameter(f"{name}: a value of data is not {datatype}.")
    try:
        return np.array(values, TYPES[datatype]).tobytes()
    except (OverflowError, ValueError) as exc:
        raise InvalidParameter(f"{name}: a value of data is not {datatype}.") from exc


async def encode(response: pb.ModelInferResponse, request: TensorRequest) -> tuple[list[bytes], int | None]:
    """The body of a response in pieces, and the length of its JSON if binary data follows."""
    head: dict[str, Any] = {"model_name": response.model_name, "model_version": response.model_version}
    if response.id:
        head["id"] = response.id
    header, tail = [to_json(head)[:-1], b',"outputs":['], []
    time_slice = TimeSlice()
    for number, (output, raw) in enumerate(zip(response.outputs, response.raw_output_contents, strict=True)):
        tensor: dict[str, Any] = {"name": output.name, "datatype": output.datatype, "shape": list(output.shape)}
        in_json = output.datatype in TYPES or output.datatype == TEXTS
        binary = request.binary.get(output.name, request.all_binary) or not in_json
        if binary:
            tensor["parameters"] = {"binary_data_size": len(raw)}
            tail.append(raw)
        header += [b"," if number else b"", to_json(tensor)[:-1]]
        if not binary:
            header.append(b',"data":[')
            for position, part in enumerate(_parts(raw, output.datatype)):
                header += [b"," if position else b"", to_json(part, inf_nan_mode="null")[1:-1]]
                await time_slice.pause_if_over()
            header.append(b"]")
        header.append(b"}")
    header.append(b"]}")
    return [*header, *tail], sum(map(len, header)) if tail else None


def _parts(raw: bytes, datatype: str) -> Iterator[list[Any]]:
    """The values of an output, VALUES_AT_ONCE at a time."""
    if datatype == TEXTS:
        texts = _texts(raw)
        while part := list(islice(texts, VALUES_AT_ONCE)):
            yield part
    else:
        values = np.frombuffer(raw, TYPES[datatype])
        for start in range(0, len(values), VALUES_AT_ONCE):
            yield values[start : start + VALUES_AT_ONCE].tolist()


def _texts(raw: bytes) -> Iterator[str]:
    position = 0
    while position + 4 <= len(raw):
        begin = position + 4
        position = begin + int.from_bytes(raw[position:begin], "little")
        yield raw[begin:position].decode("utf-8", "replace")


def _set(parameters: Any, given: Mapping[str, object]) -> None:  # noqa: ANN401  # a map of protobuf
    for name, value in given.items():
        if "shared_memory" in name:
            raise InvalidParameter(f"{name!r}: shared memory is not supported; send tensors in the body.")
        if isinstance(value, bool):
            parameters[name].bool_param = value
        elif isinstance(value, int) and -(2**63) <= value < 2**63:
            parameters[name].int64_param = value
        elif isinstance(value, float):
            parameters[name].double_param = value
        elif isinstance(value, str):
            parameters[name].string_param = value
        else:
            raise InvalidParameter(f"{name!r}: a parameter is a text, a number, true or false.")


def _flat(values: list[Any], name: str) -> tuple[list[Any], set[type]]:
    """The elements of nested arrays in their order, and their types."""
    while list in (types := set(map(type, values))):
        if types != {list}:
            raise InvalidParameter(f"{name}: data has values beside arrays.")
        values = list(chain.from_iterable(values))
    return values, types


def _object(value: object, name: str) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise InvalidParameter(f"{name!r}: must be an object.")
    return value


def _list(value: object, name: str) -> list[object]:
    if not isinstance(value, list):
        raise InvalidParameter(f"{name!r}: must be an array.")
    return value


def _text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise InvalidParameter(f"{name!r}: must be a text.")
    return value


def _size(value: object, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise InvalidParameter(f"{name}: a size must be a whole number from 0 on.")
    return value
