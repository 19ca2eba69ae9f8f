"""The codec of a model that takes tensors: a classifier without a preprocessor before it."""

import math
import os
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig, ModelInput, ModelOutput
from tritonclient.grpc.service_pb2 import ModelInferRequest, ModelInferResponse

from gateway.errors import ContractBroken, InferenceFailed
from gateway.inference.backend import Call, ModelInfo
from gateway.inference.result import Predictions, Row
from gateway.ingest.resizing import TensorInput
from gateway.timing import TimeSlice
from gateway.triton.wire import Codec, model_and_outputs, tensor_head

T = TypeVar("T", ModelInput, ModelOutput)

TYPES = {"fp32": "FP32", "fp16": "FP16", "uint8": "UINT8"}
"""The names of a TensorInput's types in Triton's protocol."""
OUTPUT_TYPES = {"FP16": "<f2", "FP32": "<f4", "FP64": "<f8"}
"""Types of scores and embeddings in Triton's protocol, as numpy types."""
MOST_IMAGES = 64
"""Most images of a call to a model without max_batch_size whose first dimension is free."""
NONE, SOFTMAX, SIGMOID = "none", "softmax", "sigmoid"
"""How a network's output becomes scores: unchanged, or by one of these functions."""


@dataclass(frozen=True, slots=True)
class TensorModel:
    """The specification of a model that takes tensors, in addition to its configuration.

    An empty name stands for the configuration's only tensor; `embeddings` "" for none.
    """

    tensor: TensorInput
    activation: str = NONE
    """NONE, SOFTMAX or SIGMOID; with SIGMOID the probabilities of the classes are independent."""
    labels: tuple[str, ...] = ()
    """By class id; () if the class numbers are the labels."""
    input: str = ""
    output: str = ""
    embeddings: str = ""

    def codec(self, config: ModelConfig) -> "TensorCodec":
        """The codec for the model's configuration; raises ContractBroken if they do not fit together."""
        file = f"{config.name}/config.pbtxt"
        given = _chosen(self.input, config.input, file, "input")
        dims, wanted = list(given.dims), self.tensor
        if (datatype := _datatype(given)) != TYPES[wanted.datatype]:
            raise ContractBroken(
                f"{file}: input {given.name!r} is {datatype}, and the gateway is told to send {wanted.datatype}; "
                f"it can send {', '.join(TYPES)}."
            )
        batch, shape = _batch(config, dims)
        if len(shape) != 3 or any(side not in {-1, own} for side, own in zip(shape, wanted.shape, strict=True)):
            raise ContractBroken(
                f"{file}: input {given.name!r} has dims {dims}, and the gateway is told to send images of "
                f"{list(wanted.shape)}: correct crop or layout ({wanted.layout})."
            )
        if batch not in {-1, 0, 1}:
            raise ContractBroken(f"{file}: input {given.name!r} always takes {batch} images; it must take any number.")
        vectors = [each for each in config.output if each.name != self.embeddings]
        scores = _chosen(self.output, vectors, file, "output")
        features = _chosen(self.embeddings, config.output, file, "output") if self.embeddings else None
        for each in (scores, *([] if features is None else [features])):
            if _datatype(each) not in OUTPUT_TYPES:
                raise ContractBroken(
                    f"{file}: output {each.name!r} is {_datatype(each)}, not one of {', '.join(OUTPUT_TYPES)}."
                )
        classes = _size(scores, config)
        if self.labels and classes not in {0, len(self.labels)}:
            raise ContractBroken(
                f"{file}: output {scores.name!r} has {classes} classes, and there are {len(self.labels)} labels."
            )
        most = config.max_batch_size or (MOST_IMAGES if batch == -1 else 1)
        return TensorCodec(
            self,
            input=given.name,
            output=scores.name,
            has_batches=config.max_batch_size > 0 or batch != 0,
            most_images=most,
            classes=classes or len(self.labels),
            embedding_size=0 if features is None else _size(features, config),
            multi_label=self.activation == SIGMOID,
            lacks=tuple(self._lacks(config)),
        )

    def _lacks(self, config: ModelConfig) -> Iterator[str]:
        """See Codec.lacks."""
        if not self.labels:
            yield f"{config.name} has no labels: class numbers are the labels"
        if config.response_cache.enable:
            yield (
                f"{config.name}/config.pbtxt: response_cache is on, and its keys can be forged: a client can prepare "
                "an image that gets the cached answer of another one"
            )


@dataclass(frozen=True)
class TensorCodec(Codec):
    """See gateway.triton.wire.Codec. The images of a call are tensors that a decoder has made."""

    model: TensorModel
    input: str
    output: str
    has_batches: bool
    """Whether the input's first dimension is the number of images."""

    def probe(self) -> bytes:
        """One tensor of random values that an image could have."""
        tensor = self.model.tensor
        pixels = np.frombuffer(os.urandom(3 * tensor.crop[0] * tensor.crop[1]), np.uint8)
        if tensor.datatype == "uint8":
            return pixels.tobytes()
        kind = np.float16 if tensor.datatype == "fp16" else np.float32
        return (pixels / 128 - 1).astype(kind).tobytes()

    def request(self, call: Call, class_count: int | None, timeout_seconds: float, *, embeddings: bool) -> bytes:
        """See Codec.request. All scores are requested, since Triton knows neither activation nor labels."""
        del class_count
        images, tensor = call.images, self.model.tensor
        request = ModelInferRequest(id=call.request_id)
        request.parameters["timeout"].int64_param = max(1, int(timeout_seconds * 1e6))  # microseconds
        shape = (len(images), *tensor.shape) if self.has_batches else tensor.shape
        request.inputs.add(name=self.input, datatype=TYPES[tensor.datatype], shape=shape)
        outputs = (self.output, self.model.embeddings) if embeddings else (self.output,)
        return b"".join(
            (
                model_and_outputs(call.model_name, call.model_version, outputs),
                request.SerializeToString(),
                tensor_head(len(images) * tensor.nbytes),
                *images,
            )
        )

    async def read(
        self, response: ModelInferResponse, *, rows: int, class_count: int | None, embeddings: bool
    ) -> Sequence[Row]:
        """See Codec.read."""
        outputs = {
            output.name: (output.datatype, raw)
            for output, raw in zip(response.outputs, response.raw_output_contents, strict=False)
        }
        try:
            scores = self._activated(_rows(*outputs[self.output], rows))
            vectors = _rows(*outputs[self.model.embeddings], rows) if embeddings else None
        except (KeyError, ValueError) as exc:
            raise InferenceFailed from exc
        answers, time_slice, version = [], TimeSlice(), response.model_version
        for number, each in enumerate(scores):
            vector = None if vectors is None else vectors[number]
            if class_count is None:
                answers.append(Row(scores=each, embedding=vector, model_version=version))
            else:
                answers.append(Row(self._best(each, class_count), embedding=vector, model_version=version))
            await time_slice.pause_if_over()
        return answers

    def completed(self, info: ModelInfo) -> ModelInfo:
        """The description of the model, with the input that its images become."""
        tensor = self.model.tensor
        height, width = tensor.crop
        return replace(
            info,
            input_height=height,
            input_width=width,
            tensor=tensor.datatype,
            resize_size=tensor.resize.size,
            crop_size=tensor.crop,
            decode="fast" if tensor.resize.fast else "exact",
            multi_label=self.multi_label,
        )

    def _activated(self, scores: NDArray[np.float32]) -> NDArray[np.float32]:
        """Scores of the network's output, fp32 [N, classes]."""
        if self.model.activation == SIGMOID:
            return np.asarray(1 / (1 + np.exp(-scores)), np.float32)
        if self.model.activation == SOFTMAX:
            powers = np.exp(scores - scores.max(axis=1, keepdims=True))
            return np.asarray(powers / powers.sum(axis=1, keepdims=True), np.float32)
        return scores

    def _best(self, scores: NDArray[np.float32], count: int) -> Predictions:
        """The `count` best classes by falling score."""
        order = np.argsort(-scores, kind="stable")[:count].tolist()
        labels = self.model.labels
        names = tuple(labels[number] if number < len(labels) else str(number) for number in order)
        return Predictions(names, array("i", order), array("d", scores[order].tolist()))


def _rows(datatype: str, raw: bytes, rows: int) -> NDArray[np.float32]:
    """An output as fp32 [N, size]; raises KeyError for another type, and ValueError."""
    values: NDArray[Any] = np.frombuffer(raw, OUTPUT_TYPES[datatype])
    if not values.size:
        raise ValueError("the output is empty")
    return values.reshape(rows, -1).astype(np.float32, copy=False)


def _chosen(name: str, tensors: Sequence[T], file: str, kind: str) -> T:
    """The tensor with a name, or the only one; raises ContractBroken."""
    found = [each for each in tensors if not name or each.name == name]
    if len(found) == 1:
        return found[0]
    names = ", ".join(each.name for each in tensors)
    if name:
        raise ContractBroken(f"{file}: there is no {kind} {name!r}, but {names}.")
    raise ContractBroken(f"{file}: there are several {kind}s, {names}: the gateway has to be told which one to use.")


def _batch(config: ModelConfig, dims: list[int]) -> tuple[int, list[int]]:
    """How many images the first dimension stands for, 0 if it is none, and the shape of one of them."""
    if config.max_batch_size == 0 and len(dims) == 4:
        return dims[0], dims[1:]
    return 0, dims


def _size(output: ModelOutput, config: ModelConfig) -> int:
    """Values of one image in an output; 0 if the configuration does not tell."""
    dims = list(output.dims)
    if config.max_batch_size == 0 and len(dims) > 1:
        dims = dims[1:]  # the first one is the number of images
    return 0 if min(dims, default=-1) < 0 else math.prod(dims)


def _datatype(tensor: ModelInput | ModelOutput) -> str:
    return str(DataType.Name(tensor.data_type).removeprefix("TYPE_"))
