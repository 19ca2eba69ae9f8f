"""Chooses the codec of a model by its configuration, which may lack parts of the gateway's contract."""

from collections import ChainMap
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Protocol, Self

from gateway.errors import ContractBroken
from gateway.ingest.resizing import TensorInput
from gateway.triton.configs import DataType, ModelConfig, parameters, steps
from gateway.triton.contract import (
    FEATURES,
    IMAGE_STATUS,
    MULTI_LABEL_PARAMETER,
    PREDICTION,
    RAW_IMAGE,
    RAW_IMAGE_LENGTH,
)
from gateway.triton.wire import Codec, ImageCodec

if TYPE_CHECKING:
    from gateway.settings import Section

INPUTS = {RAW_IMAGE: "TYPE_UINT8"}
OPTIONAL_INPUTS = {RAW_IMAGE_LENGTH: "TYPE_INT32"}
OPTIONAL_OUTPUTS = {IMAGE_STATUS: "TYPE_INT32", FEATURES: "TYPE_FP32"}
DIMS = {RAW_IMAGE: [-1], RAW_IMAGE_LENGTH: [1], IMAGE_STATUS: [1]}

PADDING_PARAMETER, ZEROS = "padding", "zeros"
"""Parameter of an ensemble without RAW_IMAGE_LENGTH, and its value: its preprocessor takes zero-padded images."""


def image_codec(config: ModelConfig) -> ImageCodec:
    """The codec of an ensemble that keeps the contract."""
    values, prediction = parameters(config), prediction_name(config)
    sizes = {output.name: int(output.dims[0]) for output in config.output}
    has_lengths = any(each.name == RAW_IMAGE_LENGTH for each in config.input)
    is_padded = has_lengths or values.get(PADDING_PARAMETER) == ZEROS
    return ImageCodec(
        most_images=int(config.max_batch_size) if is_padded else 1,
        classes=sizes[prediction],
        embedding_size=sizes.get(FEATURES, 0),
        multi_label=values.get(MULTI_LABEL_PARAMETER) == "true",
        reports_images=IMAGE_STATUS in sizes,
        prediction=prediction,
        has_lengths=has_lengths,
        # Without lengths the preprocessor reads the signature as well, so it is added only if a cache may answer.
        is_signed=has_lengths or config.response_cache.enable,
        lacks=tuple(_lacks(f"{config.name}/config.pbtxt", sizes, has_lengths=has_lengths, is_padded=is_padded)),
    )


def _lacks(file: str, outputs: Collection[str], *, has_lengths: bool, is_padded: bool) -> Iterator[str]:
    """See ImageCodec.lacks."""
    if not has_lengths and is_padded:
        yield f"{file}: no input {RAW_IMAGE_LENGTH}: only the gateway notices a file without its end"
    elif not has_lengths:
        yield (
            f"{file}: no input {RAW_IMAGE_LENGTH}: images do not share a call; the parameter {PADDING_PARAMETER} = "
            f"{ZEROS!r} says that the preprocessor takes zero-padded images"
        )
    if IMAGE_STATUS not in outputs:
        yield (
            f"{file}: no output {IMAGE_STATUS}: a file that cannot be decoded fails its call, whose images are then "
            "sent one by one, and a damaged JPEG that can be decoded gets no warning"
        )


def prediction_name(config: ModelConfig) -> str:
    """The output with the scores: PREDICTION, or the only FP32 output with one dimension."""
    vectors = [each.name for each in config.output if DataType.Name(each.data_type) == "TYPE_FP32"]
    vectors = [name for name in vectors if name != FEATURES]
    return vectors[0] if PREDICTION not in vectors and len(vectors) == 1 else PREDICTION


def breaches(config: ModelConfig) -> list[str]:
    """Violations of the contract in a model's config.pbtxt, one message each; [] if there are none."""
    found = []
    prediction = prediction_name(config)
    for kind, needed, optional, tensors in (
        ("input", INPUTS, OPTIONAL_INPUTS, config.input),
        ("output", {prediction: "TYPE_FP32"}, OPTIONAL_OUTPUTS, config.output),
    ):
        given = {tensor.name: tensor for tensor in tensors}
        wanted = {**needed, **{name: data_type for name, data_type in optional.items() if name in given}}
        for name, data_type in wanted.items():
            if name not in given:
                found.append(f"{kind} {name!r} is missing")
                continue
            if DataType.Name(given[name].data_type) != data_type:
                found.append(f"{kind} {name!r} has data_type {DataType.Name(given[name].data_type)}, not {data_type}")
            dims = list(given[name].dims)
            if name == prediction and len(dims) != 1:
                found.append(f"{kind} {name!r} has dims {dims}, not [ the number of classes ]")
            if name == FEATURES and (len(dims) != 1 or dims[0] < 1):
                found.append(f"{kind} {name!r} has dims {dims}, not [ the size of the embedding ]")
            if name in DIMS and dims != DIMS[name]:
                found.append(f"{kind} {name!r} has dims {dims}, not {DIMS[name]}")
        found += [f"{kind} {name!r} is not part of the contract" for name in given if name not in wanted]
    if config.max_batch_size < 1:
        found.append("max_batch_size is 0, which allows no batches")
    return found


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
        return cls(ChainMap(*settings.each("tensor_models")))

    def of(self, config: ModelConfig) -> Codec:
        """The codec of a model; raises ContractBroken, which says what its configuration lacks."""
        if (model := self._tensors.get(config.name)) is not None:
            return model.codec(config)
        if found := breaches(config):
            raise ContractBroken(f"{config.name}/config.pbtxt: {'; '.join(found)}.")
        return image_codec(config)

    def takes_images(self, config: ModelConfig) -> bool:
        """Whether a model that Triton lists is one that classifies images."""
        return config.name in self._tensors or (bool(steps(config)) and not breaches(config))
