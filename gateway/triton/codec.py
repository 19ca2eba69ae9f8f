"""How the calls of one model become Triton's messages: chosen once, when the model's configuration is read."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol, Self

from tritonclient.grpc.model_config_pb2 import ModelConfig
from tritonclient.grpc.service_pb2 import ModelInferResponse

from gateway.errors import ContractBroken
from gateway.inference.backend import Call, Row
from gateway.ingest.resizing import TensorInput
from gateway.triton.contract import (
    MULTI_LABEL_PARAMETER,
    ImageTensors,
    breaches,
    embedding_size,
    image_tensors,
    limitations,
    parameters,
    prediction_name,
    steps,
)
from gateway.triton.wire import COMPLETE, infer_request, read_answer

if TYPE_CHECKING:
    from gateway.inference.model_info import ModelInfo
    from gateway.settings import Section

PROBE_SIDE = 8
"""Pixels of each side of an image that probes a model."""


class Codec(Protocol):
    """Encodes the calls of one model, and decodes Triton's answers."""

    @property
    def mixes_lengths(self) -> bool:
        """Whether images of different length may share a call."""
        ...

    @property
    def reports_images(self) -> bool:
        """Whether an answer says which images could not be decoded. If not, one of them fails the whole call."""
        ...

    @property
    def most_images(self) -> int:
        """Most images of a call."""
        ...

    @property
    def classes(self) -> int:
        """The number of classes."""
        ...

    @property
    def embedding_size(self) -> int:
        """Size of the embeddings; 0 if the model has none."""
        ...

    @property
    def multi_label(self) -> bool:
        """Whether each class has a probability of its own."""
        ...

    def probe(self) -> bytes:
        """One random image, unlike any that a cache has seen."""
        ...

    def request(self, call: Call, class_count: int | None, timeout_seconds: float, *, embeddings: bool) -> bytes:
        """The serialised ModelInferRequest; see gateway.triton.wire.infer_request."""
        ...

    async def read(
        self, response: ModelInferResponse, *, rows: int, class_count: int | None, embeddings: bool
    ) -> Sequence[Row]:
        """The answer to such a request; raises InferenceFailed."""
        ...

    def limitations(self, last_step: ModelConfig) -> tuple[str, ...]:
        """What the model lacks, and what that costs: one sentence each. `last_step` of a lone model is itself."""
        ...

    def completed(self, info: "ModelInfo") -> "ModelInfo":
        """A description of the model, with what its configuration does not tell."""
        ...


@dataclass(frozen=True)
class ImageCodec:
    """The codec of an ensemble that decodes images itself: see gateway.triton.contract."""

    config: ModelConfig
    tensors: ImageTensors = COMPLETE

    @property
    def mixes_lengths(self) -> bool:
        """Whether images of different length may share a call, zero-padded."""
        return self.tensors.padded

    @property
    def reports_images(self) -> bool:
        """Whether there is an IMAGE_STATUS."""
        return self.tensors.status

    @property
    def most_images(self) -> int:
        """Most images of a call."""
        return int(self.config.max_batch_size)

    @property
    def classes(self) -> int:
        """The number of classes."""
        name = prediction_name(self.config)
        return next(int(output.dims[0]) for output in self.config.output if output.name == name)

    @property
    def embedding_size(self) -> int:
        """Size of the embeddings; 0 if the model has none."""
        return embedding_size(self.config)

    @cached_property
    def multi_label(self) -> bool:
        """By the parameter of that name."""
        return parameters(self.config).get(MULTI_LABEL_PARAMETER) == "true"

    def probe(self) -> bytes:
        """One random image as PPM."""
        return random_image()

    def request(self, call: Call, class_count: int | None, timeout_seconds: float, *, embeddings: bool) -> bytes:
        """See Codec.request."""
        return infer_request(call, class_count, timeout_seconds, embeddings=embeddings, tensors=self.tensors)

    async def read(
        self, response: ModelInferResponse, *, rows: int, class_count: int | None, embeddings: bool
    ) -> Sequence[Row]:
        """See Codec.read."""
        classified = class_count is not None
        return await read_answer(
            response, rows=rows, classified=classified, embeddings=embeddings, tensors=self.tensors
        )

    def limitations(self, last_step: ModelConfig) -> tuple[str, ...]:
        """See gateway.triton.contract.limitations."""
        return limitations(self.config, last_step)

    def completed(self, info: "ModelInfo") -> "ModelInfo":
        """The description as it is: the steps' configurations tell everything."""
        return info


def random_image() -> bytes:
    """One image of random pixels, 8 × 8, as PPM; no two are alike, so that no cache can answer in the model's place."""
    return b"P6\n%d %d\n255\n" % (PROBE_SIDE, PROBE_SIDE) + os.urandom(PROBE_SIDE * PROBE_SIDE * 3)


CONTRACT: Codec = ImageCodec(ModelConfig())
"""The codec of an ensemble with the whole contract."""


class DeclaredModel(Protocol):
    """A model that takes tensors, as a section of the settings declares it; see Section.tensor_models."""

    @property
    def tensor(self) -> TensorInput:
        """How a decoder makes the model's input."""
        ...

    def codec(self, config: ModelConfig) -> Codec:
        """The codec for the model's configuration; raises ContractBroken if they do not fit together."""
        ...


class Codecs:
    """Chooses the codec of a model by its configuration; `tensors` are the models that take tensors, by name."""

    def __init__(self, tensors: Mapping[str, DeclaredModel] | None = None) -> None:
        self._tensors = tensors or {}

    @classmethod
    def of_settings(cls, settings: "Section") -> Self:
        """With the models that sections of the settings declare; see Section.tensor_models."""
        return cls({name: model for models in settings.each("tensor_models") for name, model in models.items()})

    def tensor_input(self, name: str, _version: str = "") -> TensorInput | None:
        """How a decoder makes the input of a model; None if it takes files."""
        model = self._tensors.get(name)
        return None if model is None else model.tensor

    def of(self, config: ModelConfig) -> Codec:
        """The codec of a model; raises ContractBroken, which says what its configuration lacks."""
        if (model := self._tensors.get(config.name)) is not None:
            return model.codec(config)
        if found := breaches(config):
            raise ContractBroken(f"{config.name}/config.pbtxt: {'; '.join(found)}.")
        return ImageCodec(config, image_tensors(config))

    def takes_images(self, config: ModelConfig) -> bool:
        """Whether a model that Triton lists is one that classifies images."""
        return config.name in self._tensors or (bool(steps(config)) and not breaches(config))
