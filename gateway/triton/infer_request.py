"""A batch as the bytes of a ModelInferRequest (the Open Inference Protocol's grpc_service.proto).

protobuf's own message would copy every image three times on its way to the socket. In its encoding the fields of two
messages one behind the other are those of one message, so what never changes is made once, and the tensors are appended
as they are.
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
"""The key of a tensor's bytes; 2 is the wire type of what has a length."""


def infer_request(call: Call, class_count: int | None, timeout_seconds: float, *, vectors: bool = False) -> bytes:
    """The request for the `class_count` best classes of each image, or for all scores if None; and its `vectors`.

    It may wait in Triton's queues for `timeout_seconds`. RAW_IMAGE is zero-padded to the longest image, and each of its
    rows ends in the image's seal, if there are seals: another one where vectors are asked for.
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
            _asked(call.model_name, call.model_version, class_count, vectors),
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
def _asked(model_name: str, model_version: str, class_count: int | None, vectors: bool) -> bytes:  # noqa: FBT001
    """Which model is asked for what."""
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
    """A length, seven bits to a byte, the lowest first; all but the last have the eighth bit set."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
