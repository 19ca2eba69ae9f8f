"""The messages to Triton and back: images, zero-padded and signed, as gRPC messages, and the answers.

A request with images is encoded here, since protobuf's own message would copy every image three times on its way to the
socket. In protobuf's encoding, two concatenated messages are one message with the fields of both, so the constant part
is encoded once, and the tensors are appended without a copy.

Each row of RAW_IMAGE ends in a signature, so that Triton's response cache never returns the answer of another image.
The cache's key is an unkeyed 64-bit hash of the inputs' bytes, and a hit compares nothing (Triton core,
cache_manager.cc): two images with equal keys are found in a second, and the second would get the first one's answer. So
each row ends in a code that cannot be computed without the secret, after the bytes that decoders read. Equal images
have equal codes and still hit. Clients that call Triton directly, for example for other outputs, cannot store an answer
under the gateway's keys either.
"""

import hmac
import os
import struct
from abc import ABC, abstractmethod
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray
from tritonclient.grpc.model_config_pb2 import ModelConfig
from tritonclient.grpc.service_pb2 import ModelInferRequest, ModelInferResponse

from gateway.errors import InferenceFailed, UndecodableImage
from gateway.inference.backend import Call, SequenceScores, SequenceStep
from gateway.inference.result import Predictions, Row
from gateway.timing import TimeSlice
from gateway.triton.contract import (
    DAMAGED,
    FEATURES,
    IMAGE_STATUS,
    PREDICTION,
    RAW_IMAGE,
    RAW_IMAGE_LENGTH,
    SEQUENCE_FRAMES,
    SEQUENCE_PREDICTION,
)

if TYPE_CHECKING:
    from gateway.inference.backend import ModelInfo

SIGNATURE_BYTES = 16
PURPOSE = b"RAW_IMAGE seal 4"
"""Separates these codes from other uses of the secret. Increase the number when the gateway requests other outputs: the
cache's key does not include them, and an answer with other outputs must not be found."""
EMBEDDING_PURPOSE = b"and FEATURES 1"
"""For calls that also request FEATURES; changes like PURPOSE."""


def embedding_code(code: bytes) -> bytes:
    """The signature of an image in a call that also requests FEATURES: a different answer needs a different key.

    It is as hard to guess as the code; the code still identifies the image.
    """
    return hmac.digest(code, EMBEDDING_PURPOSE, "sha256")[:SIGNATURE_BYTES]


class Signer:
    """Makes a message authentication code of each image, the end of its row: BLAKE3's `keyed_hash`.

    Source: O'Connor, Aumasson, Neves, Wilcox-O'Hearn, "BLAKE3: one function, fast everywhere" (2020).
    """

    def __init__(self, secret: bytes) -> None:
        self._key = hmac.digest(secret, PURPOSE, "sha256")

    def sign(self, image: bytes) -> bytes:
        """The signature of one image."""
        return blake3(image, key=self._key).digest(SIGNATURE_BYTES)


_TENSOR = bytes([ModelInferRequest.DESCRIPTOR.fields_by_name["raw_input_contents"].number << 3 | 2])
"""The key of a tensor's bytes; 2 is the wire type of length-delimited fields."""
CLASSES_AT_ONCE = 500
"""Classes read between two checks of the time slice."""
MOST_LABELS = 100_000
"""Upper bound of labels that are kept as text, so that labels of removed models are released."""


@lru_cache(256)
def model_and_outputs(
    model_name: str, model_version: str, outputs: tuple[str, ...], class_count: int | None = None
) -> bytes:
    """The model and the requested outputs; of the first one the `class_count` best classes, unless it is None."""
    request = ModelInferRequest(model_name=model_name, model_version=model_version)
    for name in outputs:
        request.outputs.add(name=name)
    if class_count is not None:
        request.outputs[0].parameters["classification"].int64_param = class_count
    return bytes(request.SerializeToString())


@lru_cache(256)
def tensor_head(nbytes: int) -> bytes:
    """The bytes before an input tensor in a request: its key, and its length as a varint.

    A varint has seven bits per byte, lowest first; all bytes but the last have the eighth bit set.
    """
    head = bytearray(_TENSOR)
    while nbytes > 0x7F:
        head.append(nbytes & 0x7F | 0x80)
        nbytes >>= 7
    head.append(nbytes)
    return bytes(head)


@lru_cache(MOST_LABELS)
def label_text(raw: bytes) -> str:
    """A label in UTF-8 as text, which images share."""
    return raw.decode("utf-8", "replace")


def _embeddings(datatype: str, shape: list[int], raw: bytes, rows: int) -> NDArray[np.float32]:
    """FEATURES of a response; raises ValueError."""
    if (datatype, shape[:1], len(shape)) != ("FP32", [rows], 2):
        raise ValueError("the response lacks FEATURES, or its rows differ")
    return np.frombuffer(raw, np.float32).reshape(shape)


async def _classes(raw: bytes, rows: int, class_count: int) -> list[Row]:
    """Read BYTES [N, k], each text preceded by its length, uint32 little-endian.

    A batch of 8 from a model with 21,000 classes has 168,000 texts, so it pauses after each time slice.
    """
    time_slice = TimeSlice() if rows * class_count > CLASSES_AT_ONCE else None
    answers, position = [], 0
    for _ in range(rows):
        labels, class_ids, scores = [], array("i"), array("d")
        for number in range(class_count):
            begin = position + 4
            position = begin + int.from_bytes(raw[position:begin], "little")
            # "score:class id:label"; the label may hold colons or be absent
            score, _, rest = raw[begin:position].partition(b":")
            class_id, _, label = rest.partition(b":")
            scores.append(float(score))
            class_ids.append(int(class_id))
            labels.append(label_text(label or class_id))
            if time_slice is not None and number % CLASSES_AT_ONCE == CLASSES_AT_ONCE - 1:
                await time_slice.pause_if_over()
        answers.append(Row(predictions=Predictions(tuple(labels), class_ids, scores)))
    return answers


def step_request(step: SequenceStep, timeout_seconds: float) -> ModelInferRequest:
    """The request: PREDICTION fp32 [1, classes], Triton's sequence parameters, and the model's own."""
    request = ModelInferRequest(model_name=step.model_name, id=step.request_id)
    for name, value in step.parameters.items():
        if isinstance(value, str):
            request.parameters[name].string_param = value
        elif isinstance(value, int):
            request.parameters[name].int64_param = value
        else:
            request.parameters[name].double_param = value
    request.parameters["sequence_id"].int64_param = step.sequence_id
    request.parameters["sequence_start"].bool_param = step.start
    request.parameters["sequence_end"].bool_param = step.end
    request.parameters["timeout"].int64_param = max(1, int(timeout_seconds * 1e6))  # microseconds, in Triton's queue
    request.inputs.add(name=PREDICTION, datatype="FP32", shape=[1, len(step.scores)])
    request.raw_input_contents.append(np.ascontiguousarray(step.scores, "<f4").tobytes())
    for name in (SEQUENCE_PREDICTION, SEQUENCE_FRAMES):
        request.outputs.add(name=name)
    return request


def read_step(response: ModelInferResponse, step: SequenceStep) -> SequenceScores:
    """The answer: SEQUENCE_PREDICTION fp32 [1, classes], SEQUENCE_FRAMES int32 [1, 1]; raises InferenceFailed."""
    given = {
        output.name: np.frombuffer(raw, "<f4" if output.datatype == "FP32" else "<i4")
        for output, raw in zip(response.outputs, response.raw_output_contents, strict=True)
        if output.datatype in {"FP32", "INT32"}
    }
    scores, frames = given.get(SEQUENCE_PREDICTION), given.get(SEQUENCE_FRAMES)
    if scores is None or frames is None or scores.size != step.scores.size or frames.size != 1:
        raise InferenceFailed from ValueError(
            f"{step.model_name!r} lacks {SEQUENCE_PREDICTION} or {SEQUENCE_FRAMES}, or has other shapes"
        )
    return SequenceScores(scores.astype(np.float32, copy=False), int(frames[0]))


PROBE_SIDE = 8
"""Pixels of each side of an image that probes a model."""


@dataclass(frozen=True, kw_only=True)
class Codec(ABC):
    """Encodes the calls of one model, and decodes Triton's answers."""

    most_images: int = 1
    """Most images of a call; 1 if the images of a call would have to have one length."""
    classes: int = 0
    """The number of classes."""
    embedding_size: int = 0
    """Size of the embeddings; 0 if the model has none."""
    multi_label: bool = False
    """Whether the probabilities of the classes are independent (sigmoid)."""
    reports_images: bool = True
    """Whether an answer says which images could not be decoded. If not, one of them fails the whole call."""
    lacks: tuple[str, ...] = ()
    """Features that the model lacks, with the consequence: one sentence each."""

    @abstractmethod
    def probe(self) -> bytes:
        """One random image, unlike any that a cache has seen."""

    @abstractmethod
    def request(self, call: Call, class_count: int | None, timeout_seconds: float, *, embeddings: bool) -> bytes:
        """The ModelInferRequest for the `class_count` best classes of each image, or for all scores if None.

        With `embeddings` it also requests those. It may wait in Triton's queues for `timeout_seconds`.
        """

    @abstractmethod
    async def read(
        self, response: ModelInferResponse, *, rows: int, class_count: int | None, embeddings: bool
    ) -> Sequence[Row]:
        """The answer to such a request; raises InferenceFailed."""

    def limitations(self, last_step: ModelConfig) -> tuple[str, ...]:
        """`lacks`, and what the `last_step` of the model lacks."""
        del last_step
        return self.lacks

    def completed(self, info: "ModelInfo") -> "ModelInfo":
        """A description of the model, completed by data that its configuration lacks."""
        return info


@dataclass(frozen=True)
class ImageCodec(Codec):
    """The codec of an ensemble that decodes images itself: see gateway.triton.contract."""

    prediction: str = PREDICTION
    """The output with the scores."""
    has_lengths: bool = True
    """Whether it has RAW_IMAGE_LENGTH."""
    is_signed: bool = True
    """Whether each row ends in the image's signature."""

    def probe(self) -> bytes:
        """One image of random pixels as PPM."""
        return b"P6\n%d %d\n255\n" % (PROBE_SIDE, PROBE_SIDE) + os.urandom(PROBE_SIDE * PROBE_SIDE * 3)

    def request(
        self, call: Call, class_count: int | None, timeout_seconds: float, *, embeddings: bool = False
    ) -> bytes:
        """See Codec.request.

        RAW_IMAGE is zero-padded to the longest image, and each row ends in the image's signature, if any; with
        embeddings, in another one.
        """
        images = call.images
        rows, signatures = len(images), call.signatures
        if not (self.is_signed and signatures):
            signatures = (b"",) * rows
        elif embeddings:
            signatures = [embedding_code(code) for code in signatures]
        width = max(map(len, images)) + len(signatures[0])
        outputs = [
            self.prediction,
            *([IMAGE_STATUS] if self.reports_images else []),
            *([FEATURES] if embeddings else []),
        ]
        request = ModelInferRequest(id=call.request_id)
        request.parameters["timeout"].int64_param = max(1, int(timeout_seconds * 1e6))  # microseconds
        request.inputs.add(name=RAW_IMAGE, datatype="UINT8", shape=(rows, width))
        if self.has_lengths:
            request.inputs.add(name=RAW_IMAGE_LENGTH, datatype="INT32", shape=(rows, 1))
        parts = [
            model_and_outputs(call.model_name, call.model_version, tuple(outputs), class_count),
            request.SerializeToString(),
            tensor_head(rows * width),
        ]
        for image, signature in zip(images, signatures, strict=True):
            parts += (image, bytes(width - len(image) - len(signature)), signature)
        if self.has_lengths:
            parts += (tensor_head(4 * rows), struct.pack(f"<{rows}i", *map(len, images)))
        return b"".join(parts)

    async def read(
        self, response: ModelInferResponse, *, rows: int, class_count: int | None, embeddings: bool = False
    ) -> Sequence[Row]:
        """Read IMAGE_STATUS, INT32 [N, 1], PREDICTION, and with `embeddings` FEATURES, FP32 [N, size].

        PREDICTION is FP32 [N, classes], or with a `class_count` BYTES [N, k] of "score:class id:label".
        """
        outputs, classified = {}, class_count is not None
        for output, content in zip(response.outputs, response.raw_output_contents, strict=False):
            outputs[output.name] = output.datatype, list(output.shape), content
        nothing: tuple[str, list[int], bytes] = ("", [], b"")
        datatype, shape, raw = outputs.get(self.prediction, nothing)
        if (datatype, shape[:1], len(shape)) != ("BYTES" if classified else "FP32", [rows], 2):
            raise InferenceFailed from ValueError(f"the response lacks {self.prediction}, or its rows differ")
        try:
            codes: tuple[int, ...] = (0,) * rows
            if self.reports_images:
                datatype, status_shape, statuses = outputs.get(IMAGE_STATUS, nothing)
                if (datatype, status_shape) != ("INT32", [rows, 1]):
                    raise ValueError(f"the response lacks {IMAGE_STATUS}, or its rows differ")  # noqa: TRY301
                codes = struct.unpack(f"<{rows}i", statuses)
            if classified:
                answers = await _classes(raw, rows, shape[1])
            else:
                answers = [Row(scores=scores) for scores in np.frombuffer(raw, np.float32).reshape(shape)]
            if embeddings:
                for row, each in zip(answers, _embeddings(*outputs.get(FEATURES, nothing), rows), strict=True):
                    row.embedding = each
        except (ValueError, OverflowError, struct.error) as exc:
            raise InferenceFailed from exc
        for number, code in enumerate(codes):
            if code not in {0, DAMAGED}:
                answers[number] = Row(error=UndecodableImage())
            answers[number].damaged = code == DAMAGED
            answers[number].model_version = response.model_version
        return answers

    def limitations(self, last_step: ModelConfig) -> tuple[str, ...]:
        """See Codec.limitations."""
        if any(output.label_filename for output in last_step.output):
            return self.lacks
        return (
            *self.lacks,
            f"{last_step.name}/config.pbtxt: output has no label_filename: class numbers are the labels",
        )


CONTRACT = ImageCodec()
"""The codec of an ensemble with the whole contract."""
