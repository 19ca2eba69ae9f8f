"""The names and types that the gateway and the model repository agree on.

    RAW_IMAGE uint8 [N, L], RAW_IMAGE_LENGTH int32 [N, 1]  →  PREDICTION fp32 [N, classes], IMAGE_STATUS int32 [N, 1],
                                                              and FEATURES fp32 [N, size] of models that give embeddings

Every ensemble's config.pbtxt has the same names; nothing else couples the two.
"""

from collections.abc import Iterable

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

DRIFT_REFERENCE_PARAMETER = "drift_reference"
"""Parameter of an ensemble: how its answers were distributed when a reference was stored, as JSON.

`gateway_predictions.drift.live` defines it; the gateway passes it to the prediction log.
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


INPUTS = {RAW_IMAGE: "TYPE_UINT8", RAW_IMAGE_LENGTH: "TYPE_INT32"}
OUTPUTS = {PREDICTION: "TYPE_FP32", IMAGE_STATUS: "TYPE_INT32"}
OPTIONAL_OUTPUTS = {FEATURES: "TYPE_FP32"}
DIMS = {RAW_IMAGE: [-1], RAW_IMAGE_LENGTH: [1], IMAGE_STATUS: [1]}


def breaches(config: ModelConfig) -> list[str]:
    """Violations of the contract in a model's config.pbtxt, one message each; [] if there are none."""
    found = []
    for kind, needed, tensors in (("input", INPUTS, config.input), ("output", OUTPUTS, config.output)):
        given = {tensor.name: tensor for tensor in tensors}
        optional = OPTIONAL_OUTPUTS if kind == "output" else {}
        wanted = {**needed, **{name: data_type for name, data_type in optional.items() if name in given}}
        for name, data_type in wanted.items():
            if name not in given:
                found.append(f"{kind} {name!r} is missing")
                continue
            if DataType.Name(given[name].data_type) != data_type:
                found.append(f"{kind} {name!r} has data_type {DataType.Name(given[name].data_type)}, not {data_type}")
            dims = list(given[name].dims)
            if name == PREDICTION and len(dims) != 1:
                found.append(f"{kind} {name!r} has dims {dims}, not [ the number of classes ]")
            if name == FEATURES and (len(dims) != 1 or dims[0] < 1):
                found.append(f"{kind} {name!r} has dims {dims}, not [ the size of the embedding ]")
            if name in DIMS and dims != DIMS[name]:
                found.append(f"{kind} {name!r} has dims {dims}, not {DIMS[name]}")
        found += [f"{kind} {name!r} is not part of the contract" for name in given if name not in wanted]
    if config.max_batch_size < 1:
        found.append("max_batch_size is 0, which allows no batches")
    return found


def vector_size(config: ModelConfig) -> int:
    """Size of the embeddings of a model that keeps the contract; 0 if it has none."""
    return next((int(output.dims[0]) for output in config.output if output.name == FEATURES), 0)


def has_labels(step: ModelConfig) -> bool:
    """Whether a model, the last step of an ensemble, has labels for its classes."""
    return any(output.label_filename for output in step.output)
