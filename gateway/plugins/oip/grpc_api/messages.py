"""The messages of GRPCInferenceService as requests of `/v2`, and responses back.

A tensor in `raw_input_contents` has the form of binary data below `/v2`: each image after its length. So images are
passed on as they are, and only their description is translated. It is counted before Protocol Buffers creates objects
from it, because two bytes can be a message: https://protobuf.dev/programming-guides/encoding/.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import DecodeError
from pydantic_core import to_json
from tritonclient.grpc import service_pb2 as pb

from gateway.errors import InvalidBody, InvalidParameter, ModelNotFound, TooManyFiles
from gateway.plugins.oip.documents import HEADER_LENGTH
from gateway.plugins.oip.grpc_api.asgi import Response
from gateway.values.quantities import size

LENGTH_BYTES = 4
MAX_DESCRIPTION_BYTES = 8 * 1024
"""Bytes of a message besides its images: at most half as many fields."""
VARINT, FIXED64, DELIMITED, FIXED32 = 0, 1, 2, 5
INPUTS, RAW_INPUT_CONTENTS = 5, 7
"""Fields of ModelInferRequest."""
CONTENTS, BYTES_CONTENTS = 5, 8
"""Fields of ModelInferRequest.InferInputTensor and of InferTensorContents."""
MAX_VARINT_BYTES = 10

Parts = list[bytes | memoryview]


@dataclass(frozen=True, slots=True)
class InferCall:
    """A request of `/v2`: its path, its JSON and the binary data after it."""

    path: str
    id: str
    header: bytes
    contents: Sequence[bytes | memoryview] = field(repr=False)


def model_path(name: str, version: str) -> str:
    """The path of a model, or of one of its versions; raises ModelNotFound for a name that changes the path."""
    if not name or "/" in name or "/" in version:
        raise ModelNotFound
    return f"/v2/models/{name}/versions/{version}" if version else f"/v2/models/{name}"


def infer_call(raw: bytes, *, max_images: int) -> InferCall:
    """The request for a message, without a copy of its images.

    Raises InvalidBody, InvalidParameter, TooManyFiles and ModelNotFound.
    """
    counts = _Counts(max_images)
    description = bytearray()
    raw_contents: Parts = []
    inputs: list[tuple[bytearray, Parts]] = []
    for number, whole, payload in _fields(memoryview(raw)):
        if number == RAW_INPUT_CONTENTS and payload is not None:
            counts.add_image()
            raw_contents.append(payload)
        elif number == INPUTS and payload is not None:
            counts.add_description(len(whole) - len(payload))
            inputs.append(_input(payload, counts))
        else:
            counts.add_description(len(whole))
            description += whole
    message = _parsed(pb.ModelInferRequest, description)
    contents: Parts = []
    tensors = []
    for index, (tensor_description, elements) in enumerate(inputs):
        tensor = _parsed(pb.ModelInferRequest.InferInputTensor, tensor_description)
        images = raw_contents[index : index + 1] or elements
        contents += images
        parameters = {**_values(tensor.parameters), "binary_data_size": sum(map(len, images))}
        members = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
        tensors.append({**members, "parameters": parameters})
    contents += raw_contents[len(inputs) :]  # more than the inputs: refused as a body that is too long
    parameters = _values(message.parameters)
    document = {"id": message.id, "parameters": {**parameters, "binary_data_output": True}, "inputs": tensors}
    if message.outputs:
        document["outputs"] = [
            {"name": output.name, "parameters": {**_values(output.parameters), "binary_data": True}}
            for output in message.outputs
        ]
    path = f"{model_path(message.model_name, message.model_version)}/infer"
    return InferCall(path, message.id, to_json(document), contents)


def infer_response(response: Response) -> pb.ModelInferResponse:
    """The message for the response to an inference."""
    body = response.body
    position = int(response.headers.get(HEADER_LENGTH.lower().encode(), len(body)))
    document = json.loads(body[:position])
    message = pb.ModelInferResponse(
        model_name=document["model_name"], model_version=document["model_version"], id=document.get("id", "")
    )
    for tensor in document["outputs"]:
        message.outputs.add(name=tensor["name"], datatype=tensor["datatype"], shape=tensor["shape"])
        end = position + tensor["parameters"]["binary_data_size"]
        message.raw_output_contents.append(body[position:end])
        position = end
    return message


class _Counts:
    """What a ModelInferRequest may still have: images, and bytes besides them."""

    def __init__(self, max_images: int) -> None:
        self._max_images = self._images_left = max_images
        self._bytes_left = MAX_DESCRIPTION_BYTES

    def add_description(self, nbytes: int) -> None:
        """Count bytes that are no image; raises InvalidBody."""
        self._bytes_left -= nbytes
        if self._bytes_left < 0:
            raise InvalidBody(f"The message has more than {size(MAX_DESCRIPTION_BYTES)} besides its images.")

    def add_image(self) -> None:
        """Count an image; raises TooManyFiles."""
        self._images_left -= 1
        if self._images_left < 0:
            most = self._max_images
            raise TooManyFiles(f"A request may have at most {most:,} images.", limit="max_files", value=most)


def _input(message: memoryview, counts: _Counts) -> tuple[bytearray, Parts]:
    """An InferInputTensor without its contents, and its images there, each after its length."""
    description = bytearray()
    elements: Parts = []
    for number, whole, payload in _fields(message):
        if number != CONTENTS or payload is None:
            counts.add_description(len(whole))
            description += whole
            continue
        counts.add_description(len(whole) - len(payload))
        for inner, _, element in _fields(payload):
            if inner != BYTES_CONTENTS or element is None:
                raise InvalidParameter("Elements that are not BYTES must be in raw_input_contents.")
            counts.add_image()
            elements += (len(element).to_bytes(LENGTH_BYTES, "little"), element)
    return description, elements


def _parsed(kind: Any, description: bytearray) -> Any:  # noqa: ANN401  # protobuf's classes
    try:
        return kind.FromString(bytes(description))
    except DecodeError as exc:
        raise _malformed() from exc


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview, memoryview | None]]:
    """Number, the whole field, and the payload of one with a length; raises InvalidBody."""
    position, end = 0, len(message)
    while position < end:
        begin = position
        key, position = _varint(message, position)
        wire_type, length = key & 7, 0
        if wire_type == VARINT:
            _, position = _varint(message, position)
        elif wire_type == DELIMITED:
            length, position = _varint(message, position)
        elif wire_type in (FIXED32, FIXED64):
            length = 4 if wire_type == FIXED32 else 8
        else:
            raise _malformed()
        if not key >> 3 or length > end - position:
            raise _malformed()
        payload = message[position : position + length] if wire_type == DELIMITED else None
        position += length
        yield key >> 3, message[begin:position], payload


def _varint(message: memoryview, position: int) -> tuple[int, int]:
    """A number, and the position after it; raises InvalidBody."""
    value = shift = 0
    for byte in message[position : position + MAX_VARINT_BYTES]:
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise _malformed()


def _malformed() -> InvalidBody:
    return InvalidBody("The message is not a ModelInferRequest.")


def _values(parameters: Mapping[str, pb.InferParameter]) -> dict[str, Any]:
    """The parameters as JSON; one without a value is left out."""
    return {
        name: getattr(parameter, kind)
        for name, parameter in parameters.items()
        if (kind := parameter.WhichOneof("parameter_choice")) is not None
    }
