"""The messages of Triton's GRPCInferenceService as requests of `/v2` and back.

A tensor in `raw_input_contents` has the form of binary data under `/v2`: each image after its length. So images are
passed on as they are, and all that is translated is what describes them.
"""

import json
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import DecodeError
from pydantic_core import to_json
from tritonclient.grpc import service_pb2 as pb

from gateway.errors import InvalidBody, ModelNotFound
from gateway_plugins.oip.grpc_api.wire import InferParts, MessageScan, delimited

HEADER_LENGTH = b"inference-header-content-length"
LENGTH_BYTES = 4
RAW_OUTPUT_CONTENTS, INFER_RESPONSE = 6, 2
"""Fields of inference.ModelInferResponse and of inference.ModelStreamInferResponse."""

Parts = list[bytes | memoryview]
"""An encoded message, whose parts follow each other."""


def model_path(name: str, version: str) -> str:
    """The path of a model, or of one of its versions; raises ModelNotFound for what would be another path."""
    if not name or "/" in name or "/" in version:
        raise ModelNotFound
    return f"/v2/models/{name}/versions/{version}" if version else f"/v2/models/{name}"


@dataclass(frozen=True, slots=True)
class InferCall:
    """A request of `/v2`: its path, its JSON and the binary data after it.

    `sequence` identifies the sequence of the request among those of its stream; None without one.
    """

    path: str
    id: str
    header: bytes
    contents: Sequence[bytes | memoryview] = field(repr=False)
    sequence: tuple[str, object] | None = None


def infer_call(raw: memoryview, scan: MessageScan) -> InferCall:
    """The request for a message, without a copy of its images.

    Raises InvalidBody if the message cannot be read, ModelNotFound, and the errors of the scan.
    """
    parts = scan.split(raw)
    try:
        message = pb.ModelInferRequest.FromString(parts.description)
        tensors = [pb.ModelInferRequest.InferInputTensor.FromString(each.description) for each in parts.inputs]
    except DecodeError as exc:
        raise InvalidBody("The message is not a ModelInferRequest.") from exc
    header, contents = _body(message, tensors, parts)
    parameters = _values(message.parameters)
    path = f"{model_path(message.model_name, message.model_version)}/infer"
    sequence = parameters.get("sequence_id") or None
    return InferCall(path, message.id, header, contents, sequence and (message.model_name, sequence))


def _body(
    message: pb.ModelInferRequest, tensors: Sequence[pb.ModelInferRequest.InferInputTensor], parts: InferParts
) -> tuple[bytes, list[bytes | memoryview]]:
    """The JSON of a request, and the binary data after it."""
    contents: list[bytes | memoryview] = []
    inputs = []
    for number, (tensor, given) in enumerate(zip(tensors, parts.inputs, strict=True)):
        if number < len(parts.raw_contents):
            elements: list[bytes | memoryview] = [parts.raw_contents[number]]
        else:
            elements = _prefixed(given.elements)
        contents += elements
        inputs.append(
            {
                "name": tensor.name,
                "datatype": tensor.datatype,
                "shape": list(tensor.shape),
                "parameters": {**_values(tensor.parameters), "binary_data_size": sum(map(len, elements))},
            }
        )
    contents += parts.raw_contents[len(tensors) :]
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


def infer_response(headers: Mapping[bytes, bytes], pieces: Sequence[bytes]) -> Parts:
    """The encoded message for a response, in parts: its tensors are those of the response's body, not copied."""
    header_bytes = int(headers.get(HEADER_LENGTH, str(sum(map(len, pieces))).encode()))
    rest: deque[memoryview] = deque(memoryview(piece) for piece in pieces)
    document = json.loads(b"".join(_take(rest, header_bytes)))
    message = pb.ModelInferResponse(
        model_name=document["model_name"], model_version=document["model_version"], id=document.get("id", "")
    )
    parts: list[bytes | memoryview] = []
    for tensor in document["outputs"]:
        message.outputs.add(name=tensor["name"], datatype=tensor["datatype"], shape=tensor["shape"])
        nbytes = tensor["parameters"]["binary_data_size"]
        parts += [delimited(RAW_OUTPUT_CONTENTS, nbytes), *_take(rest, nbytes)]
    return [message.SerializeToString(), *parts]


def stream_response(parts: Parts) -> Parts:
    """The encoded ModelStreamInferResponse of a ModelInferResponse."""
    return [delimited(INFER_RESPONSE, sum(map(len, parts))), *parts]


def _take(pieces: deque[memoryview], nbytes: int) -> list[memoryview]:
    """Remove the first `nbytes`."""
    taken = []
    while nbytes:
        piece = pieces.popleft()
        if len(piece) > nbytes:
            pieces.appendleft(piece[nbytes:])
            piece = piece[:nbytes]
        taken.append(piece)
        nbytes -= len(piece)
    return taken


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


def _prefixed(elements: Iterable[memoryview]) -> list[bytes | memoryview]:
    """The elements of a BYTES tensor, each after its length, uint32 little-endian."""
    return [part for each in elements for part in (len(each).to_bytes(LENGTH_BYTES, "little"), each)]


def _values(parameters: Mapping[str, pb.InferParameter]) -> dict[str, Any]:
    """The parameters as JSON; one without a value is left out."""
    return {
        name: getattr(parameter, kind)
        for name, parameter in parameters.items()
        if (kind := parameter.WhichOneof("parameter_choice")) is not None
    }
