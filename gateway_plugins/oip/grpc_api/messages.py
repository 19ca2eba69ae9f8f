"""The messages of Triton's GRPCInferenceService as requests of `/v2` and back.

A tensor in `raw_input_contents` has the form of binary data under `/v2`: each image after its length. So images are
passed on as they are, and all that is translated is what describes them.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import DecodeError
from pydantic_core import to_json
from tritonclient.grpc import service_pb2 as pb

from gateway.errors import InvalidBody

HEADER_LENGTH = b"inference-header-content-length"
LENGTH_BYTES = 4


def model_path(name: str, version: str) -> str:
    """The path of a model, or of one of its versions."""
    return f"/v2/models/{name}/versions/{version}" if version else f"/v2/models/{name}"


@dataclass(frozen=True, slots=True)
class InferCall:
    """A request of `/v2`: its path, its JSON and the binary data after it.

    `sequence` identifies the sequence of the request among those of its stream; None without one.
    """

    path: str
    id: str
    header: bytes
    contents: Sequence[bytes] = field(repr=False)
    sequence: tuple[str, object] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the body."""
        return len(self.header) + sum(map(len, self.contents))


def infer_call(raw: bytes) -> InferCall:
    """The request for a message; raises InvalidBody if it cannot be read."""
    try:
        message = pb.ModelInferRequest.FromString(raw)
    except DecodeError as exc:
        raise InvalidBody("The message is not a ModelInferRequest.") from exc
    header, contents = _body(message)
    parameters = _values(message.parameters)
    path = f"{model_path(message.model_name, message.model_version)}/infer"
    sequence = parameters.get("sequence_id") or None
    return InferCall(path, message.id, header, contents, sequence and (message.model_name, sequence))


def _body(message: pb.ModelInferRequest) -> tuple[bytes, list[bytes]]:
    """The JSON of a request, and the binary data after it."""
    contents = list(message.raw_input_contents)
    inputs = []
    for number, tensor in enumerate(message.inputs):
        if number == len(contents):
            contents.append(_joined(tensor.contents.bytes_contents))
        inputs.append(
            {
                "name": tensor.name,
                "datatype": tensor.datatype,
                "shape": list(tensor.shape),
                "parameters": {**_values(tensor.parameters), "binary_data_size": len(contents[number])},
            }
        )
    document: dict[str, Any] = {
        "id": message.id,
        "parameters": {**_values(message.parameters), "binary_data_output": True},
        "inputs": inputs,
    }
    if message.outputs:
        document["outputs"] = [
            {"name": output.name, "parameters": {**_values(output.parameters), "binary_data": True}}
            for output in message.outputs
        ]
    return to_json(document), contents


def infer_response(headers: Mapping[bytes, bytes], body: bytes) -> pb.ModelInferResponse:
    """The message for a response."""
    begin = int(headers.get(HEADER_LENGTH, str(len(body)).encode()))
    document = json.loads(body[:begin])
    message = pb.ModelInferResponse(
        model_name=document["model_name"], model_version=document["model_version"], id=document.get("id", "")
    )
    for tensor in document["outputs"]:
        message.outputs.add(name=tensor["name"], datatype=tensor["datatype"], shape=tensor["shape"])
        end = begin + tensor["parameters"]["binary_data_size"]
        message.raw_output_contents.append(body[begin:end])
        begin = end
    return message


def model_metadata(document: Mapping[str, Any]) -> pb.ModelMetadataResponse:
    """The message for a model's metadata."""
    tensors = {
        member: [
            pb.ModelMetadataResponse.TensorMetadata(name=each["name"], datatype=each["datatype"], shape=each["shape"])
            for each in document[member]
        ]
        for member in ("inputs", "outputs")
    }
    return pb.ModelMetadataResponse(
        name=document["name"], versions=document["versions"], platform=document["platform"], **tensors
    )


def _joined(elements: Iterable[bytes]) -> bytes:
    """The elements of a BYTES tensor, each after its length, uint32 little-endian."""
    return b"".join(part for each in elements for part in (len(each).to_bytes(LENGTH_BYTES, "little"), each))


def _values(parameters: Mapping[str, pb.InferParameter]) -> dict[str, Any]:
    """The parameters as JSON; one without a value is left out."""
    return {
        name: getattr(parameter, kind)
        for name, parameter in parameters.items()
        if (kind := parameter.WhichOneof("parameter_choice")) is not None
    }
