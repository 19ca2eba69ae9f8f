"""A batch as the bytes of a ModelInferRequest (the Open Inference Protocol's grpc_service.proto).

protobuf's own message would copy every image three times on its way to the socket. In protobuf's encoding, two
concatenated messages are one message with the fields of both, so the constant part is encoded once, and the tensors are
appended without a copy.
"""

import struct
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from tritonclient.grpc.service_pb2 import ModelInferRequest

from gateway.inference.backend import Batch, Call
from gateway.triton.contract import FEATURES, IMAGE_STATUS, PREDICTION, RAW_IMAGE, RAW_IMAGE_LENGTH
from gateway.triton.seal import with_vectors

_TENSOR = bytes([ModelInferRequest.DESCRIPTOR.fields_by_name["raw_input_contents"].number << 3 | 2])
"""The key of a tensor's bytes; 2 is the wire type of length-delimited fields."""


def infer_request(call: Call, class_count: int | None, timeout_seconds: float, *, vectors: bool = False) -> bytes:
    """The request for the `class_count` best classes of each image, or for all scores if None.

    With `vectors` it also requests the embeddings. It may wait in Triton's queues for `timeout_seconds`. RAW_IMAGE is
    zero-padded to the longest image, and each row ends in the image's seal, if any; with embeddings, another seal.
    """
    batch = call.batch
    if vectors:
        batch = replace(batch, seals=[with_vectors(code) for code in batch.seals])
    rows, width = len(batch), max(map(len, batch.images)) + len(batch.seals[0] if batch.seals else b"")
    request = ModelInferRequest(id=call.request_id)
    request.parameters["timeout"].int64_param = max(1, int(timeout_seconds * 1e6))  # Triton's unit is the microsecond
    request.inputs.add(name=RAW_IMAGE, datatype="UINT8", shape=(rows, width))
    request.inputs.add(name=RAW_IMAGE_LENGTH, datatype="INT32", shape=(rows, 1))
    return b"".join(
        (
            _model_and_outputs(call.model_name, call.model_version, class_count, vectors),
            request.SerializeToString(),
            _TENSOR,
            _varint(rows * width),
            *_padded(batch, width),
            _TENSOR,
            _varint(4 * rows),
            struct.pack(f"<{rows}i", *map(len, batch.images)),
        )
    )


@lru_cache(256)
def _model_and_outputs(model_name: str, model_version: str, class_count: int | None, vectors: bool) -> bytes:  # noqa: FBT001
    """The model and the requested outputs."""
    request = ModelInferRequest(model_name=model_name, model_version=model_version)
    prediction = request.outputs.add(name=PREDICTION)
    if class_count is not None:
        prediction.parameters["classification"].int64_param = class_count
    request.outputs.add(name=IMAGE_STATUS)
    if vectors:
        request.outputs.add(name=FEATURES)
    return bytes(request.SerializeToString())


def _padded(batch: Batch, width: int) -> Iterator[bytes]:
    for image, seal in zip(batch.images, batch.seals or [b""] * len(batch), strict=True):
        yield image
        yield bytes(width - len(image) - len(seal))
        yield seal


def _varint(number: int) -> bytes:
    """A length as a varint: seven bits per byte, lowest first; all bytes but the last have the eighth bit set."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
