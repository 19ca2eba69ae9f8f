"""The names and types that the gateway and the model repository agree on.

    RAW_IMAGE uint8 [N, L], RAW_IMAGE_LENGTH int32 [N, 1]  →  PREDICTION fp32 [N, classes], IMAGE_STATUS int32 [N, 1],
                                                              and FEATURES fp32 [N, size] of models that give embeddings

Every ensemble's config.pbtxt has the same names; nothing else couples the two. RAW_IMAGE_LENGTH and IMAGE_STATUS may be
missing, and the only FP32 output of a foreign repository may have any name: see `codecs.py`.
"""

from collections.abc import Iterable

ALL = "*"
"""Triton's name for all models of its repository."""
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

An ensemble's steps are the same for all of its versions, so a model with several versions has an ensemble for each:
`flowers` answers with the version in use, whose number its version folder has; `flowers.v1` and `flowers.v2` answer
with one each. All of them run `flowers_preprocessor` and a version of `flowers_classifier`.
"""
PRECISION_PARAMETER, MULTI_LABEL_PARAMETER = "precision", "multi_label"
"""Parameters of an ensemble: fp32, bf16 or fp16; and `true` if the classes' probabilities are independent (sigmoid)."""
CPU_RUNTIME_PARAMETER, TORCHSCRIPT = "cpu_runtime", "torchscript"
"""Parameter of an ensemble: its TorchScript network's runtime on a CPU, in this project's backend; and the default."""
DECODE_PARAMETER, EXACT, FAST = "decode", "exact", "fast"
"""Parameter of an ensemble, and its values: whether large JPEGs are decoded pixel by pixel, or at a reduced scale."""

PROCESS_MEMORY_PARAMETER = "process_memory"
"""Parameter of an ensemble: the memory of a process of its network, as JSON, measured when it was added; see
gateway.triton.footprint."""

AFTER_PARAMETER = "after"
"""Parameter of an ensemble: its post-processing step, in words; without it the network is the last step."""
DESCRIPTION_PARAMETER = "description"
"""Parameter of an ensemble: a sentence about the model."""
ROLLOUT_PARAMETER = "rollout"
"""Parameter of an ensemble: which versions of its model answer, as JSON; see gateway.values.rollout."""
DRIFT_REFERENCE_PARAMETER = "drift_reference"
"""Parameter of an ensemble: how its answers were distributed when a reference was stored, as JSON.

`gateway_models.predictions.live_drift` defines it; the gateway passes it to the prediction log.
"""
SIZED_FOR = "sized_for"
"""The parameter of a configuration that was completed at Triton's start: the machine it was sized for."""


def pinned(name: str, version: int | str) -> str:
    """The ensemble that answers for one version of a model, whichever version is in use."""
    return f"{name}.v{version}"


def pinned_versions(name: str, ensembles: Iterable[str]) -> dict[str, str]:
    """The ensembles that answer for one version of the model each, with that version."""
    start = pinned(name, "")
    numbers = {ensemble: ensemble.removeprefix(start) for ensemble in ensembles if ensemble.startswith(start)}
    return {ensemble: number for ensemble, number in numbers.items() if number.isdecimal()}
