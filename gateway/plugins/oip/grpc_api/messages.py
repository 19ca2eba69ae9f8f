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

from gateway.errors import HeadersTooLarge, InvalidBody, InvalidParameter, ModelNotFound, TooManyFiles
from gateway.plugins.oip.documents import HEADER_LENGTH
from gateway.plugins.oip.grpc_api.asgi import Response
from gateway.values.quantities import size

LENGTH_BYTES = 4
MAX_MEMBERS = 256
"""Fields of a request and of its inputs, without the images."""
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


def infer_call(raw: bytes, *, max_description_bytes: int, max_images: int) -> InferCall:
    """The request for a message, without a copy of its images.

    Besides the images, the message may have MAX_MEMBERS fields and `max_description_bytes`. Raises InvalidBody,
    InvalidParameter, HeadersTooLarge, TooManyFiles and ModelNotFound.
    """
    scan = _Scan(max_description_bytes, max_images)
    try:
        message = pb.ModelInferRequest.FromString(scan.description(memoryview(raw)))
    except DecodeError as exc:
        raise _malformed() from exc
    contents: Parts = []
    inputs = []
    for number, tensor in enumerate(message.inputs):
        images = scan.raw_contents[number : number + 1] or scan.elements[number]
        contents += images
        description = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
        parameters = {**_values(tensor.parameters), "binary_data_size": sum(map(len, images))}
        inputs.append({**description, "parameters": parameters})
    contents += scan.raw_contents[len(inputs) :]  # more than the inputs: refused as a body that is too long
    parameters = _values(message.parameters)
    document = {"id": message.id, "parameters": {**parameters, "binary_data_output": True}, "inputs": inputs}
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


class _Scan:
    """Splits a ModelInferRequest into its images and their description, and counts both."""

    def __init__(self, max_description_bytes: int, max_images: int) -> None:
        self._max_bytes = self._left_bytes = max_description_bytes
        self._max_images = self._left_images = max_images
        self._left_members = MAX_MEMBERS
        self.raw_contents: Parts = []
        self.elements: list[Parts] = []
        """For each input the images in its own contents, as they are in `raw_contents`: each after its length."""

    def description(self, message: memoryview) -> bytes:
        """The message without its images; raises InvalidBody, InvalidParameter, HeadersTooLarge or TooManyFiles."""
        description = bytearray()
        for number, whole, payload in _fields(message):
            if number == RAW_INPUT_CONTENTS and payload is not None:
                self._count_image()
                self.raw_contents.append(payload)
            elif number == INPUTS and payload is not None:
                tensor = self._input(payload)
                description += _varint_of(INPUTS << 3 | DELIMITED) + _varint_of(len(tensor)) + tensor
            else:
                self._count_member(len(whole))
                description += whole
        return bytes(description)

    def _input(self, message: memoryview) -> bytes:
        self._count_member(0)
        description = bytearray()
        elements: Parts = []
        for number, whole, payload in _fields(message):
            if number != CONTENTS or payload is None:
                self._count_member(len(whole))
                description += whole
                continue
            self._count_member(0)
            for inner, _, element in _fields(payload):
                if inner != BYTES_CONTENTS or element is None:
                    raise InvalidParameter("Elements that are not BYTES must be in raw_input_contents.")
                self._count_image()
                elements += (len(element).to_bytes(LENGTH_BYTES, "little"), element)
        self.elements.append(elements)
        return bytes(description)

    def _count_member(self, nbytes: int) -> None:
        self._left_members -= 1
        self._left_bytes -= nbytes
        if self._left_members < 0:
            raise InvalidBody(f"The message has more than {MAX_MEMBERS} fields besides its images.")
        if self._left_bytes < 0:
            most = self._max_bytes
            raise HeadersTooLarge(
                f"A message may have {size(most)} besides its images.", limit="max_header_bytes", value=most
            )

    def _count_image(self) -> None:
        self._left_images -= 1
        if self._left_images < 0:
            most = self._max_images
            raise TooManyFiles(f"A request may have at most {most:,} images.", limit="max_files", value=most)


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


def _varint_of(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*encoded, value))


def _malformed() -> InvalidBody:
    return InvalidBody("The message is not a ModelInferRequest.")


def _values(parameters: Mapping[str, pb.InferParameter]) -> dict[str, Any]:
    """The parameters as JSON; one without a value is left out."""
    return {
        name: getattr(parameter, kind)
        for name, parameter in parameters.items()
        if (kind := parameter.WhichOneof("parameter_choice")) is not None
    }
