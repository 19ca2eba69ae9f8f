"""The names and types that the gateway and the model repository agree on.

    RAW_IMAGE uint8 [N, L], RAW_IMAGE_LENGTH int32 [N, 1]  →  PREDICTION fp32 [N, classes], IMAGE_STATUS int32 [N, 1],
                                                              and FEATURES fp32 [N, size] of models that give embeddings

Every ensemble's config.pbtxt has the same names; nothing else couples the two. RAW_IMAGE_LENGTH and IMAGE_STATUS may be
missing, and the only FP32 output of a repository of others may have any name: `limitations` says what that costs.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig

ENSEMBLE_MODEL, PREPROCESSOR, CLASSIFIER = "ensemble_model", "preprocessor", "classifier"
"""The models of the default repository."""

RAW_IMAGE = "RAW_IMAGE"
"""Encoded images, zero-padded to one length: uint8 [N, L]."""
RAW_IMAGE_LENGTH = "RAW_IMAGE_LENGTH"
"""Their true lengths in bytes: int32 [N, 1]."""
PREDICTION = "PREDICTION"
"""A score for each class: fp32 [N, classes]."""
FEATURES = "FEATURES"
"""The embedding of each image, if the model has this output: fp32 [N, size]."""
IMAGE_STATUS = "IMAGE_STATUS"
"""0 for an image that was decoded, DAMAGED, or another number if there is no image: int32 [N, 1]."""
DAMAGED = 4
"""IMAGE_STATUS of an image that was decoded, but whose compressed data is damaged: some of its pixels are wrong."""

SEQUENCE_MODEL = "sequence_model"
"""The stateful model of the default repository, used by every model that names no other."""
SEQUENCE_PREDICTION = "SEQUENCE_PREDICTION"
"""Output of a stateful model for the PREDICTION of one frame: scores of the sequence so far, fp32 [1, classes]."""
SEQUENCE_FRAMES = "SEQUENCE_FRAMES"
"""Number of frames in SEQUENCE_PREDICTION: int32 [1, 1]."""
SEQUENCE_PARAMETER = "sequence_model"
"""Parameter of an ensemble: the stateful model for its streams."""

PREPROCESSED_IMAGE = "PREPROCESSED_IMAGE"
"""The tensor between an ensemble's steps: RGB [N, 3, height, width], in one of IMAGE_TYPES."""
IMAGE_TYPES = {"fp32": "TYPE_FP32", "uint8": "TYPE_UINT8"}
"""Data types by their usual names: normalised by the preprocessor, or pixels that the network normalises."""
CLASSIFIER_INPUT, CLASSIFIER_OUTPUT = "input__0", "output__0"
"""The names that Triton's libtorch backend gives to a TorchScript model's first input and output."""
CLASSIFIER_FEATURES = "output__1"
"""The name of its second output: the embeddings, if the network has them."""

MODEL_PARAMETER, VERSION_PARAMETER = "model", "version"
"""Parameters of an ensemble: the name and the version that it answers for.

An ensemble's steps are the same for all of its versions, so a model with several has an ensemble for each: `flowers`
answers with the version in use, whose number its version folder has, and `flowers.v1`, `flowers.v2` with one each.
All of them run the one `flowers_preprocessor` and the versions of the one `flowers_classifier`.
"""
PRECISION_PARAMETER, MULTI_LABEL_PARAMETER = "precision", "multi_label"
"""Parameters of an ensemble: fp32, bf16 or fp16; and `true` if each class has a probability of its own."""
CPU_RUNTIME_PARAMETER, TORCHSCRIPT = "cpu_runtime", "torchscript"
"""Parameter of an ensemble: what runs its TorchScript network on a CPU in this project's backend; and its default."""
DECODE_PARAMETER, EXACT, FAST = "decode", "exact", "fast"
"""Parameter of an ensemble, and its values: whether large JPEGs are decoded pixel by pixel, or at a reduced scale."""

PROCESS_MEMORY_PARAMETER = "process_memory"
"""Parameter of an ensemble: what a process of its network takes, as JSON, measured when it was added; see
gateway.triton.footprint."""

AFTER_PARAMETER = "after"
"""Parameter of an ensemble: what the step after its network does, in words; without it the network is the last step."""
DRIFT_REFERENCE_PARAMETER = "drift_reference"
"""Parameter of an ensemble: how its answers were distributed when a reference was stored, as JSON.

`gateway_predictions.live_drift` defines it; the gateway passes it to the prediction log.
"""


def image_tensor(data_type: int) -> str | None:
    """The name in IMAGE_TYPES of a tensor's data_type; None for any other type."""
    return next((name for name, kind in IMAGE_TYPES.items() if DataType.Name(data_type) == kind), None)


def pinned(name: str, version: int | str) -> str:
    """The ensemble that answers for one version of a model, whichever version is in use."""
    return f"{name}.v{version}"


def pinned_versions(name: str, ensembles: Iterable[str]) -> dict[str, str]:
    """The ensembles that answer for one version of the model each, with that version."""
    start = pinned(name, "")
    numbers = {ensemble: ensemble.removeprefix(start) for ensemble in ensembles if ensemble.startswith(start)}
    return {ensemble: number for ensemble, number in numbers.items() if number.isdecimal()}


INPUTS = {RAW_IMAGE: "TYPE_UINT8"}
OPTIONAL_INPUTS = {RAW_IMAGE_LENGTH: "TYPE_INT32"}
OPTIONAL_OUTPUTS = {IMAGE_STATUS: "TYPE_INT32", FEATURES: "TYPE_FP32"}
DIMS = {RAW_IMAGE: [-1], RAW_IMAGE_LENGTH: [1], IMAGE_STATUS: [1]}

PADDING_PARAMETER, ZEROS = "padding", "zeros"
"""Parameter of an ensemble without RAW_IMAGE_LENGTH, and its value: its preprocessor takes zero-padded images."""


@dataclass(frozen=True, slots=True)
class ImageTensors:
    """Which tensors of the contract an ensemble has, and what a call of several images may be."""

    prediction: str = PREDICTION
    """The output with the scores."""
    lengths: bool = True
    """Whether it has RAW_IMAGE_LENGTH."""
    status: bool = True
    """Whether it has IMAGE_STATUS."""
    padded: bool = True
    """Whether images of different length may share a call, zero-padded."""
    sealed: bool = True
    """Whether each row ends in the image's seal."""


def image_tensors(config: ModelConfig) -> ImageTensors:
    """The tensors of an ensemble that keeps the contract."""
    lengths = any(each.name == RAW_IMAGE_LENGTH for each in config.input)
    padding = config.parameters[PADDING_PARAMETER].string_value if PADDING_PARAMETER in config.parameters else ""
    return ImageTensors(
        prediction_name(config),
        lengths=lengths,
        status=any(each.name == IMAGE_STATUS for each in config.output),
        padded=lengths or padding == ZEROS,
        # Without lengths the preprocessor sees the seal as well; it is worth that only where a cache may answer.
        sealed=lengths or config.response_cache.enable,
    )


def prediction_name(config: ModelConfig) -> str:
    """The output with the scores: PREDICTION, or the only FP32 output with one dimension, whatever its name."""
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


def limitations(config: ModelConfig, last_step: ModelConfig) -> tuple[str, ...]:
    """What an ensemble that keeps the contract lacks, and what that costs: one sentence each."""
    tensors, file = image_tensors(config), f"{config.name}/config.pbtxt"
    found = []
    if not tensors.lengths and tensors.padded:
        found.append(f"{file}: no input {RAW_IMAGE_LENGTH}: only the gateway notices a file without its end")
    elif not tensors.lengths:
        found.append(
            f"{file}: no input {RAW_IMAGE_LENGTH}: images of different length do not share a call; the parameter "
            f"{PADDING_PARAMETER} = {ZEROS!r} says that the preprocessor takes zero-padded images"
        )
    if not tensors.status:
        found.append(
            f"{file}: no output {IMAGE_STATUS}: a file that cannot be decoded fails its call, whose images are then "
            "sent one by one, and a damaged JPEG that can be decoded gets no warning"
        )
    if not has_labels(last_step):
        found.append(f"{last_step.name}/config.pbtxt: output has no label_filename: class numbers are the labels")
    return tuple(found)


def embedding_size(config: ModelConfig) -> int:
    """Size of the embeddings of a model that keeps the contract; 0 if it has none."""
    return next((int(output.dims[0]) for output in config.output if output.name == FEATURES), 0)


def has_labels(step: ModelConfig) -> bool:
    """Whether a model, the last step of an ensemble, has labels for its classes."""
    return any(output.label_filename for output in step.output)
